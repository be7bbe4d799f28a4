"""The figures of a run's folder are made by every run, and become pixels only where a test looks at them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from fedvlp.callbacks import files

DRAWN = dict(files.FIGURES)
"""The functions that draw them, as they are without tests."""


@dataclass(frozen=True)
class Unrendered:
    """Stands in for a figure, whose pixels and layout take longer than a round of training.

    Attributes:
        figure: the figure itself.
    """

    figure: Figure

    def savefig(self, file: str | Path, format: str) -> None:
        """Writes a picture of one pixel."""
        Image.new("RGB", (1, 1)).save(file, format=format)


def _unrendered(name: str, *given: Any) -> Unrendered:
    return Unrendered(DRAWN[name](*given))


def leave_unrendered() -> None:
    """Lets runs write their figures without pixels, until ``files.FIGURES`` is ``DRAWN`` again."""
    files.FIGURES = {name: partial(_unrendered, name) for name in DRAWN}
