"""Skip rendering the accuracy figure that every run writes, except in tests that check it."""

from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from fedvlp.callbacks import files

DRAWN = files.accuracy_figure
"""The original function that draws the figure."""


def _unrendered(*given: Any) -> Figure:
    """Make a figure that is saved as one pixel, because rendering takes longer than a round of training."""
    figure = DRAWN(*given)
    figure.savefig = lambda file, format: Image.new("RGB", (1, 1)).save(file, format=format)
    return figure


def skip_rendering() -> None:
    """Skip rendering until ``files.accuracy_figure`` is ``DRAWN`` again."""
    files.accuracy_figure = _unrendered
