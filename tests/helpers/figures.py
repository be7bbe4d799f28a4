"""The figures of a run's folder are made by every run, and become pixels only where a test looks at them."""

from __future__ import annotations

from functools import partial
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from fedvlp.callbacks import files

DRAWN = dict(files.FIGURES)
"""The functions that draw them, as they are without tests."""


def _unrendered(name: str, *given: Any) -> Figure:
    """A figure that is saved as one pixel: layout and pixels take longer than a round of training."""
    figure = DRAWN[name](*given)
    figure.savefig = lambda file, format: Image.new("RGB", (1, 1)).save(file, format=format)
    return figure


def leave_unrendered() -> None:
    """Lets runs write their figures without pixels, until ``files.FIGURES`` is ``DRAWN`` again."""
    files.FIGURES = {name: partial(_unrendered, name) for name in DRAWN}
