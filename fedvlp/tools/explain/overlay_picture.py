"""The picture of overlays: a row for each image, with a map over it for each classifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fedvlp.results.style import SMALL_FONT_SIZE, Picture, escape_text
from fedvlp.tools.explain.overlays import View
from fedvlp.tools.explain.relevance import Method
from fedvlp.tools.explain.samples import Samples

COLOUR_MAP = "inferno"
MAX_LINE_LENGTH = 27
"""How many characters fit above a map."""

METHODS = {
    "grad_cam": "Grad-CAM (Selvaraju et al., 2017) on the image tower's last feature map",
    "attention": "attention weighted by its gradient (Chefer et al., 2021), mean over blocks",
}


def overlay_picture(
    samples: Samples,
    pictures: NDArray[np.float32],
    by_classifier: Mapping[str, View],
    classes: Int[Tensor, "B"],
    class_names: Sequence[str],
    method: Method,
) -> Picture:
    """Returns a row for each image: the image, then each classifier's map over it, scaled to its own largest value."""
    asked = [class_names[int(label)] for label in classes]
    caption = (
        f"What speaks for a class in an image: {METHODS[method]}, of the class's logit. Each map is scaled to its own "
        "largest value, so maps compare in place, not in strength. Above each map: the probability of the class that "
        "is asked for, and the predicted class where it is another. The weights that mix prompts are held fixed."
    )
    alt_texts = []
    for row, name in enumerate(samples.names):
        places = [f"{title} most at the {place_in_words(view.maps[row])}" for title, view in by_classifier.items()]
        alt_texts.append(f"{name}, asked for {asked[row]}: {', '.join(places)}")
    figure = _draw(samples, pictures, by_classifier, classes, class_names)
    return Picture(figure, "What speaks for a class, under each prompt", caption, ". ".join(alt_texts) + ".")


def _draw(
    samples: Samples,
    pictures: NDArray[np.float32],
    by_classifier: Mapping[str, View],
    classes: Int[Tensor, "B"],
    class_names: Sequence[str],
) -> Figure:
    """Returns the images and the maps over them, with a bar for the colours."""
    columns = 1 + len(by_classifier)
    figure = Figure(figsize=(1.4 * columns, 1.8 * len(samples) + 0.6), dpi=200, layout="constrained")
    panels = figure.subplots(len(samples), columns, squeeze=False)
    for row, axes in enumerate(panels):
        label = int(classes[row])
        _show(axes[0], pictures[row], [samples.title(row, class_names), f"asked for: {class_names[label]}"])
        for place, (name, view) in enumerate(by_classifier.items(), start=1):
            lines = _prediction_lines(view.probabilities[row], label, class_names)
            _show(axes[place], pictures[row], [name, *lines] if row == 0 else lines)
            draw_map(axes[place], view.maps[row], pictures.shape[1:3])
    colours = ScalarMappable(Normalize(0, 1), COLOUR_MAP)
    bar = figure.colorbar(colours, ax=panels, location="bottom", shrink=0.4, aspect=40)
    bar.ax.tick_params(labelsize=SMALL_FONT_SIZE - 1)
    bar.set_label("share of each map's largest value", fontsize=SMALL_FONT_SIZE)
    return figure


def draw_map(axes: Axes, values: Float[Tensor, "rows columns"], size: tuple[int, int]) -> None:
    """Draws a map over the image that the axes show, more opaque where it is larger; nothing where all is zero."""
    largest = float(values.max())
    scaled = values / largest if largest > 0 else values
    smooth = F.interpolate(scaled[None, None], size=size, mode="bilinear", align_corners=False)[0, 0].numpy()
    axes.imshow(smooth, cmap=COLOUR_MAP, vmin=0, vmax=1, alpha=0.85 * smooth)


def place_in_words(values: Float[Tensor, "rows columns"]) -> str:
    """Returns where a map is largest, in words.

    >>> import torch
    >>> place_in_words(torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    'top right'
    >>> place_in_words(torch.zeros(3, 3))
    'no place'
    """
    if float(values.max()) <= 0:
        return "no place"
    row, column = divmod(int(values.argmax()), values.shape[1])
    vertical = ("top", "", "bottom")[3 * row // values.shape[0]]
    horizontal = ("left", "", "right")[3 * column // values.shape[1]]
    return f"{vertical} {horizontal}".strip() or "middle"


def _show(axes: Axes, picture: NDArray[np.float32], lines: Sequence[str]) -> None:
    """Draws an image under some lines, the longer of which are cut."""
    cut = [line if len(line) <= MAX_LINE_LENGTH else f"{line[: MAX_LINE_LENGTH - 1]}…" for line in lines]
    axes.imshow(picture)
    axes.set_title("\n".join(map(escape_text, cut)), fontsize=SMALL_FONT_SIZE - 1, linespacing=1.3)
    axes.set_axis_off()


def _prediction_lines(probabilities: Float[Tensor, "C"], label: int, class_names: Sequence[str]) -> list[str]:
    """Returns the probability of a class, and the predicted class if that is another, in two lines."""
    best = int(probabilities.argmax())
    asked = f"{class_names[label]} {float(probabilities[label]):.0%}"
    if best == label:
        return ["", asked]
    return [asked, f"best: {class_names[best]} {float(probabilities[best]):.0%}"]
