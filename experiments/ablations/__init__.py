"""The papers' ablation studies: one file per table or figure, and one command for all."""
