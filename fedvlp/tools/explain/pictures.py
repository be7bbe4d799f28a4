"""Pictures of explanations: predictions, overlays, and experts of patches."""

from collections.abc import Mapping, Sequence
from math import ceil, isqrt
from textwrap import wrap
from typing import Any

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray
from torch import Tensor

from fedvlp.results.figures import COLOURS, MAX_SERIES, SMALL_FONT_SIZE, Picture, escape_text
from fedvlp.tools.explain.images import Samples, Views


def _fit_lines(lines: Sequence[str], length: int) -> str:
    return "\n".join(escape_text(line if len(line) <= length else f"{line[: length - 1]}…") for line in lines)


def _show(axes: Axes, image: NDArray[np.float32], title: str, **options: Any) -> None:
    axes.imshow(image)
    axes.set_title(title, **{"fontsize": SMALL_FONT_SIZE, **options})
    axes.set_axis_off()


def prediction_picture(
    samples: Samples, by_classifier: Mapping[str, Sequence[Mapping[str, float]]], class_names: Sequence[str]
) -> Picture:
    """Draw the images, with the class or labels that each classifier predicts, and their probabilities, below."""
    rows = ceil(len(samples.names) / 3)
    texts: list[list[str]] = []
    for row, label in enumerate(samples.labels):
        truth = dict(zip(class_names, label.tolist(), strict=True)) if label.ndim else {class_names[int(label)]: 1}
        texts.append([])
        for name, predictions in by_classifier.items():
            predicted = predictions[row]
            # Unknown labels are NaN, and may be predicted or not.
            is_right = all(value not in (0, 1) or value == (each in predicted) for each, value in truth.items())
            mark = "" if not label.ndim and label < 0 else "✓ " if is_right else "✗ "
            text = ", ".join(f"{each} {probability:.0%}" for each, probability in predicted.items())
            texts[-1].append(f"{mark}{name}: {text or 'no label'}")
    # The layout fails if a text is wider than its image, or very high.
    wrapped = [[part for line in lines for part in wrap(line, 34, max_lines=2, placeholder="…")] for lines in texts]
    height = 1.9 + 0.13 * max(map(len, wrapped))
    figure = Figure(figsize=(2.2 * 3, height * rows), dpi=150, layout="constrained")
    panels = figure.subplots(rows, 3, squeeze=False).flat
    alt_texts = []
    for axes, shown, title, lines, parts in zip(panels, samples.shown, samples.titles, texts, wrapped, strict=False):
        _show(axes, shown, _fit_lines(wrap(title, 34), 34))
        options = {"fontsize": SMALL_FONT_SIZE - 1, "ha": "center", "va": "top"}
        axes.text(0.5, -0.03, _fit_lines(parts, 34), transform=axes.transAxes, **options)
        alt_texts.append(f"{title} – {'; '.join(lines)}")
    for axes in panels[len(samples.names) :]:
        axes.set_axis_off()
    caption = (
        "Images that no client trained on, evenly spread over their domains and not selected by result. Above: domain "
        "and class or labels. Below: each classifier's predicted class or labels, with probabilities; ✓ is correct, ✗ "
        "is wrong."
    )
    return Picture(figure, "Sample predictions", caption, ". ".join(alt_texts) + ".")


COLOUR_MAP = "inferno"
METHODS = {
    "grad_cam": "Grad-CAM (Selvaraju et al., 2017) on the image tower's last feature map",
    "attention": "attention weighted by its gradient (Chefer et al., 2021), mean over blocks",
}


def overlay_picture(samples: Samples, views: Views, class_names: Sequence[str]) -> Picture:
    """Draw one row per image: the image, then each classifier's map over it, scaled to the map's largest value."""
    num_images = len(samples.names)
    columns = 1 + len(views.maps)
    figure = Figure(figsize=(1.4 * columns, 1.8 * num_images + 0.6), dpi=200, layout="constrained")
    panels = figure.subplots(num_images, columns, squeeze=False)
    alt_texts = []
    for row, label in enumerate(views.classes.tolist()):
        class_name = class_names[label]
        small = {"fontsize": SMALL_FONT_SIZE - 1, "linespacing": 1.3}
        title = _fit_lines([samples.titles[row], f"map for: {class_name}"], 27)
        _show(panels[row, 0], samples.shown[row], title, **small)
        for axes, (name, maps) in zip(panels[row, 1:], views.maps.items(), strict=True):
            probabilities = views.probabilities[name][row]
            best = int(probabilities.argmax())
            lines = [f"{class_name} {float(probabilities[label]):.0%}"]
            if best == label:
                lines.insert(0, "")  # all titles have two lines, so that the maps of a row are aligned
            else:
                lines.append(f"best: {class_names[best]} {float(probabilities[best]):.0%}")
            title = _fit_lines([name, *lines] if row == 0 else lines, 27)
            _show(axes, samples.shown[row], title, **small)
            draw_map(axes, maps[row], samples.shown.shape[1:3])
        alt_texts.append(f"{samples.names[row]}, maps for {class_name}: {', '.join(views.maps)}")
    colours = ScalarMappable(Normalize(0, 1), COLOUR_MAP)
    bar = figure.colorbar(colours, ax=panels, location="bottom", shrink=0.4, aspect=40)
    bar.ax.tick_params(labelsize=SMALL_FONT_SIZE - 1)
    bar.set_label("share of each map's largest value", fontsize=SMALL_FONT_SIZE)
    caption = (
        f"Image regions that support a class: {METHODS[views.method]}, of the class's logit. Each map is scaled to its "
        "largest value, so maps can be compared by location but not by strength. Above each map: the probability of "
        "the map's class, and the predicted class if it differs. The weights that mix prompts are held fixed."
    )
    return Picture(figure, "Regions that support a class, for each prompt", caption, ". ".join(alt_texts) + ".")


def draw_map(axes: Axes, values: Float[Tensor, "rows columns"], size: tuple[int, int]) -> None:
    """Draw a map over the image in the axes, more opaque for larger values."""
    largest = float(values.max())
    scaled = values / largest if largest > 0 else values
    smooth = F.interpolate(scaled[None, None], size=size, mode="bilinear", align_corners=False)[0, 0].numpy()
    axes.imshow(smooth, cmap=COLOUR_MAP, vmin=0, vmax=1, alpha=0.85 * smooth)


MAX_NUMBERED_SIDE = 16
"""Largest number of patches in a row for which each patch has room for a number."""

DROPPED = {"facecolor": "0.75", "edgecolor": "0.35", "hatch": "//////"}


def expert_shares(tokens: Int[Tensor, "P"], num_experts: int) -> list[float]:
    """Compute each expert's share of the tokens that were not dropped, including the class token (TRIP's pi)."""
    num_routed = max(int((tokens >= 0).sum()), 1)
    return [int((tokens == expert).sum()) / num_routed for expert in range(num_experts)]


def token_map_picture(samples: Samples, experts: Int[Tensor, "B P"], names: Sequence[str]) -> Picture:
    """Draw each image next to its patches in the colours of their experts; -1 in ``experts`` is a dropped token."""
    columns = min(len(samples.names), 2)  # each with an image and its map
    rows = ceil(len(samples.names) / columns)
    figure = Figure(figsize=(3.5 * columns, 1.95 * rows + 0.35), dpi=200, layout="constrained")
    panels = figure.subplots(rows, 2 * columns, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    alt_texts = []
    for row, tokens in enumerate(experts):
        image_axes, map_axes = panels.reshape(-1, 2)[row]
        _show(image_axes, samples.shown[row], escape_text(samples.titles[row]))
        draw_token_map(map_axes, samples.shown[row], tokens)
        shares = ":".join(f"{100 * share:.0f}" for share in expert_shares(tokens, len(names)))
        map_axes.set_title(f"{shares} %", fontsize=SMALL_FONT_SIZE)
        alt_texts.append(f"{samples.names[row]}: shares of {', '.join(names)} are {shares} %")
    # Separate artists, because a map may lack an expert.
    handles = [Patch(**_patch_options(expert), label=escape_text(name)) for expert, name in enumerate(names)]
    handles.append(Patch(**_patch_options(-1), label="dropped"))
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=SMALL_FONT_SIZE, frameon=False)
    caption = (
        "Each patch has the colour and number of its token's expert, with the capacity of evaluation. Grey, hatched "
        "patches were dropped, because their expert was full. Above: the experts' shares of other tokens, including "
        "non-patch tokens; these shares mix the prompts. "
        f"{float((experts < 0).float().mean()):.1%} of the tokens were dropped."
    )
    return Picture(figure, "The expert of each patch", caption, ". ".join(alt_texts) + ".")


def draw_token_map(axes: Axes, image: NDArray[np.float32], tokens: Int[Tensor, "P"]) -> None:
    """Draw the patches of an image over the image in grey."""
    side = isqrt(len(tokens))
    height = image.shape[0] / side
    width = image.shape[1] / side
    axes.imshow(image.mean(axis=2), cmap="gray", vmin=-0.3, vmax=1)
    # The tokens of patches are a square number of tokens at the end.
    for patch, expert in enumerate(tokens[-(side**2) :].tolist()):
        row, column = divmod(patch, side)
        corner = (column * width - 0.5, row * height - 0.5)
        # Excluded from the layout, which would take long with hundreds of artists.
        axes.add_patch(Rectangle(corner, width, height, linewidth=0.3, **_patch_options(expert), in_layout=False))
        if expert >= 0 and side <= MAX_NUMBERED_SIDE:
            middle = (corner[0] + width / 2, corner[1] + height / 2)
            axes.text(*middle, str(expert + 1), fontsize=28 / side, ha="center", va="center", in_layout=False)


def _patch_options(expert: int) -> dict[str, Any]:
    if expert < 0:
        return DROPPED
    return {"facecolor": COLOURS[expert % MAX_SERIES], "edgecolor": "white", "alpha": 0.55}
