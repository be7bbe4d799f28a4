"""Where a class is seen in images, under fixed, mixed and single prompts (TRIP, Fig. 8; PLAN, Fig. 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.results.figures import SMALL_FONT_SIZE, Picture, escape_text
from fedvlp.tools.explain.methods import logits_by_prompt
from fedvlp.tools.explain.relevance import Logits, Method, differentiable_constants, differentiable_logits, relevance
from fedvlp.tools.explain.samples import Samples
from fedvlp.utils.errors import UserError

FIXED = "zero-shot CLIP"
"""What an untrained baseline is called beside the trained method."""


@dataclass(frozen=True)
class View:
    """What one classifier says of the images.

    Attributes:
        probabilities: of all classes, in [0, 1].
        maps: relevance of each patch for the class in question, at least 0.
    """

    probabilities: Float[Tensor, "B C"]
    maps: Float[Tensor, "B rows columns"]


def classifiers(module: FederatedModule, images: Float[Tensor, "B 3 V V"]) -> dict[str, Logits]:
    """Returns the logits under the fixed prompt, under what was trained, and under each prompt that this mixes."""
    found: dict[str, Logits] = {}
    baseline = module.baseline()
    if baseline is not None and baseline is not module:
        found[FIXED] = differentiable_logits(baseline)
    found[type(module).__name__] = differentiable_logits(module)
    with torch.no_grad():
        names = list(logits_by_prompt(module, module.precomputed(images)))
    found |= {name: _logits_of_prompt(module, name) for name in names}
    return found


def views(
    module: FederatedModule, images: Float[Tensor, "B 3 V V"], toward: Int[Tensor, "B"] | None, method: Method
) -> tuple[dict[str, View], Int[Tensor, "B"]]:
    """Returns what each classifier says of images, and the classes in question.

    Args:
        module: A method in evaluation mode.
        images: On its device.
        toward: The classes in question; what the method predicts if not given.
        method: How relevance is measured.
    """
    clip: Any = module.clip
    by_name = classifiers(module, images)
    with torch.no_grad():
        probabilities = {name: logits(images).float().softmax(dim=-1) for name, logits in by_name.items()}
    # All classifiers are asked for the same class, or their maps would not compare.
    classes = probabilities[type(module).__name__].argmax(dim=-1) if toward is None else toward
    own = getattr(module, "image_tower", None)
    found = {}
    for name, logits in by_name.items():
        maps = relevance(clip, logits, images, classes, method, None if name == FIXED else own)
        found[name] = View(probabilities[name].cpu(), maps.cpu())
    return found, classes.cpu()


def classes_in_question(toward: str, samples: Samples, class_names: Sequence[str]) -> Int[Tensor, "B"] | None:
    """Returns the class for which each image is looked at, None for the predicted one.

    Args:
        toward: ``predicted``, ``true``, or the name of a class.
        samples: The images.
        class_names: All classes.

    Raises:
        UserError: If there is no such class, or the true ones are not known.
    """
    if toward == "predicted":
        return None
    if toward in class_names:
        return torch.full((len(samples),), list(class_names).index(toward))
    if toward != "true":
        known = ", ".join(class_names)
        raise UserError(f"Expected --toward predicted, true or a class ({known}), but got {toward!r}.")
    if bool((samples.labels < 0).any()):
        raise UserError("The true classes of these files are not known. Pass --toward predicted or a class's name.")
    return samples.labels


def _logits_of_prompt(module: FederatedModule, name: str) -> Logits:
    def logits(images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B C"]:
        by_prompt: dict[str, Tensor] = logits_by_prompt(module, differentiable_constants(module, images))
        return by_prompt[name]

    return logits


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
