"""The picture of predictions: each image with its class, and the class that each classifier predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fedvlp.results.figures import SMALL_FONT_SIZE, Picture, escape_text
from fedvlp.tools.explain.samples import Samples

COLUMNS = 3
MAX_LINE_LENGTH = 42
"""How many characters fit below an image."""


def prediction_picture(
    samples: Samples,
    pictures: NDArray[np.float32],
    by_classifier: Mapping[str, Float[Tensor, "B C"]],
    class_names: Sequence[str],
) -> Picture:
    """Returns the images, below each the class that every classifier predicts, with its probability.

    Args:
        samples: The images.
        pictures: The same to look at, in [0, 1].
        by_classifier: Each classifier's probabilities.
        class_names: All classes.
    """
    lines = [_lines(samples, row, by_classifier, class_names) for row in range(len(samples))]
    caption = (
        "Images on which nobody trained, evenly spread over their domains and not chosen by result: domain and class "
        "above, below the class that each classifier predicts, with its probability. ✓ is right, ✗ is wrong."
    )
    alt_texts = [f"{samples.title(row, class_names)} – {'; '.join(of_image)}" for row, of_image in enumerate(lines)]
    figure = _draw([samples.title(row, class_names) for row in range(len(samples))], pictures, lines)
    return Picture(figure, "Sample predictions", caption, ". ".join(alt_texts) + ".")


def _lines(
    samples: Samples, row: int, by_classifier: Mapping[str, Float[Tensor, "B C"]], class_names: Sequence[str]
) -> list[str]:
    """Returns the class that each classifier predicts; whether that is right only where the image's class is known."""
    label = int(samples.labels[row])
    lines = []
    for name, probabilities in by_classifier.items():
        predicted = int(probabilities[row].argmax())
        mark = ""
        if label >= 0:
            mark = "✓ " if predicted == label else "✗ "
        lines.append(f"{mark}{name}: {class_names[predicted]} {float(probabilities[row, predicted]):.0%}")
    return lines


def _draw(titles: Sequence[str], pictures: NDArray[np.float32], lines: Sequence[Sequence[str]]) -> Figure:
    num_rows = ceil(len(titles) / COLUMNS)
    height = 1.9 + 0.13 * len(lines[0])
    figure = Figure(figsize=(2.2 * COLUMNS, height * num_rows), dpi=150, layout="constrained")
    panels = list(figure.subplots(num_rows, COLUMNS, squeeze=False).flat)
    for axes in panels:
        axes.set_axis_off()
    for axes, title, picture, below in zip(panels, titles, pictures, lines, strict=False):
        axes.imshow(picture)
        axes.set_title(_fitting(title), fontsize=SMALL_FONT_SIZE)
        text = "\n".join(map(_fitting, below))
        axes.text(0.5, -0.03, text, transform=axes.transAxes, fontsize=SMALL_FONT_SIZE - 1, ha="center", va="top")
    return figure


def _fitting(line: str) -> str:
    return escape_text(line if len(line) <= MAX_LINE_LENGTH else f"{line[: MAX_LINE_LENGTH - 1]}…")
