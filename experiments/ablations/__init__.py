"""The papers' ablation studies: one file a table or figure, one command for all."""
