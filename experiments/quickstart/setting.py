"""What the study of the quickstart compares, and where its runs are."""

from __future__ import annotations

from pathlib import Path

from experiments.runs import Setting

CHOSEN = Path(__file__).with_name("rates.json")


def setting(output: Path) -> Setting:
    """Returns StyledShapes with the tiny CLIP, on the CPU."""
    return Setting(output=output, more=("--trainer.accelerator=cpu",))
