"""Target images as points in the plane: what t-SNE is shown, and where it puts it (PLAN, Fig. 6).

t-SNE is that of van der Maaten and Hinton, "Visualizing data using t-SNE", JMLR 2008, as scikit-learn has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.results.figures import (
    COLOURS,
    COLUMN_WIDTH,
    FONT_SIZE,
    MARKERS,
    MAX_SERIES,
    SMALL_FONT_SIZE,
    Picture,
    escape_text,
)
from fedvlp.tools.explain.methods import image_features
from fedvlp.utils.errors import UserError

Points = NDArray[np.float32]
"""Places [N, 2] in the plane."""

Shown = Literal["class logits", "image features"]


def check_tsne(count: int, perplexity: float | None) -> float:
    """Returns the perplexity to use: the one given, or 30, or a third of the points where there are few.

    Raises:
        UserError: If scikit-learn is missing, there are fewer than four points, or not more than the perplexity.
    """
    try:
        import sklearn.manifold  # noqa: F401
    except ImportError as error:
        missing = 't-SNE needs scikit-learn, which is not installed. Run: pip install "fedvlp[explain]"'
        raise UserError(missing) from error
    if count < 4:
        raise UserError(f"t-SNE needs at least 4 images, but there are {count}. Use a domain with more images.")
    if perplexity is not None and not 0 < perplexity < count:
        raise UserError(
            f"t-SNE needs a perplexity above 0 and below the number of images, {count}, but got {perplexity}. "
            "Pass a smaller --perplexity."
        )
    return min(30.0, (count - 1) / 3) if perplexity is None else perplexity


def tsne(features: Float[Tensor, "N d"], perplexity: float | None = None, seed: int = 0) -> Points:
    """Returns places [N, 2] in the plane at which near features are near; equal calls give equal places.

    Raises:
        UserError: As :func:`check_tsne`.
    """
    chosen = check_tsne(len(features), perplexity)
    # Optional, and slow to import.
    from sklearn.manifold import TSNE

    places = TSNE(perplexity=chosen, init="pca", random_state=seed).fit_transform(features.double().numpy())
    return np.asarray(places, dtype=np.float32)


@torch.no_grad()
def embeddings(
    trained: FederatedModule, baseline: FederatedModule, images: Float[Tensor, "B 3 V V"]
) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B d"], Shown]:
    """Returns what t-SNE is shown of images under the trained method and under its baseline, and what that is.

    These are unit image features where the trained method changes them, else logits.

    A method that leaves image features as they are differs from CLIP in its logits alone; of these the mean over
    classes is taken off, which no probability depends on.

    Args:
        trained: The trained method.
        baseline: What it is compared with.
        images: A batch on their device.
    """
    changed = image_features(trained, images)
    if changed is None:
        centred = [_centred(module(images)) for module in (trained, baseline)]
        return centred[0], centred[1], "class logits"
    clip: Any = baseline.clip
    unchanged = image_features(baseline, images)
    if unchanged is None:
        unchanged = clip.encode_image(images)
    return F.normalize(changed.float(), dim=-1), F.normalize(unchanged.float(), dim=-1), "image features"


def _centred(logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
    return logits.float() - logits.float().mean(dim=1, keepdim=True)


def neighbour_agreement(points: Points, labels: Sequence[int]) -> float:
    """Returns the share of points whose nearest other point has the same label.

    >>> neighbour_agreement(np.asarray([[0, 0], [0, 1], [9, 9]], dtype=np.float32), [1, 1, 2])
    0.6666666666666666
    """
    distances = torch.cdist(torch.from_numpy(points).double(), torch.from_numpy(points).double())
    nearest = distances.fill_diagonal_(torch.inf).argmin(dim=1)
    return float((torch.as_tensor(labels)[nearest] == torch.as_tensor(labels)).double().mean())


FILLS = ("full", "empty", "hatched")
"""Of markers, one after another where there are more classes than colours."""

MAX_CLASSES = MAX_SERIES * len(FILLS)
"""How many classes a legend can tell apart; names of more stand in the middle of their points."""


def tsne_picture(
    panels: Mapping[str, Points],
    labels: Sequence[int],
    domains: Sequence[str],
    class_names: Sequence[str],
    shown: str,
) -> Picture:
    """Returns the panels side by side, colour by class and marker by domain.

    Args:
        panels: Places [N, 2], by the name of the method whose they are.
        labels: Class of each point.
        domains: Domain of each point.
        class_names: Names of the classes.
        shown: What the points are and how they were placed, in the caption's words.
    """
    domain_names = list(dict.fromkeys(domains))
    where = ", ".join(domain_names)
    scores = [f"{title}: {neighbour_agreement(points, labels):.0%}" for title, points in panels.items()]
    agreement = f"Share of points whose nearest neighbour in the plane is of their class: {'; '.join(scores)}."
    caption = (
        f"t-SNE of {shown}, for {len(labels)} images of {where}, which nobody trained on. Each panel has a plane of "
        "its own; only which points are near each other can be compared. Colour and fill: class"
        f"{'. Marker: domain' if len(domain_names) > 1 else ''}. {agreement}"
    )
    domain_indices = np.asarray([domain_names.index(name) for name in domains])
    figure = _draw(panels, np.asarray(labels), domain_indices, class_names)
    _add_legend(figure, [class_names[label] for label in sorted(set(labels))], domain_names)
    return Picture(figure, f"Images of {where} before and after training", caption, f"Scatter plots. {agreement}")


def _draw(
    panels: Mapping[str, Points],
    labels: Int[np.ndarray, "N"],
    domains: Int[np.ndarray, "N"],
    class_names: Sequence[str],
) -> Figure:
    """Returns the panels without a legend."""
    size = (COLUMN_WIDTH * len(panels), COLUMN_WIDTH + 0.9)
    figure = Figure(figsize=size, dpi=200, layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, points) in zip(all_axes, panels.items(), strict=True):
        axes.set_title(escape_text(title), fontsize=FONT_SIZE)
        axes.set(xticks=[], yticks=[])
        _scatter(axes, points, labels, domains)
        if len(set(labels.tolist())) > MAX_CLASSES:
            _name_classes(axes, points, labels, class_names)
    return figure


def _scatter(axes: Axes, points: Points, labels: Int[np.ndarray, "N"], domains: Int[np.ndarray, "N"]) -> None:
    for index, label in enumerate(np.unique(labels)):
        for domain in np.unique(domains):
            chosen = points[(labels == label) & (domains == domain)]
            axes.scatter(chosen[:, 0], chosen[:, 1], **_marker_options(index, int(domain)))


def _name_classes(axes: Axes, points: Points, labels: Int[np.ndarray, "N"], class_names: Sequence[str]) -> None:
    """Writes each class's name in the middle of its points."""
    for label in np.unique(labels):
        x, y = np.median(points[labels == label], axis=0)
        text = axes.text(float(x), float(y), escape_text(class_names[label]), fontsize=5)
        text.set(ha="center", va="center", path_effects=[withStroke(linewidth=1.5, foreground="white")])


def _marker_options(index: int, domain: int) -> dict[str, Any]:
    """Returns the options of ``scatter`` for the class at this index and a domain."""
    colour = COLOURS[index % MAX_SERIES]
    fill = FILLS[index // MAX_SERIES % len(FILLS)]
    return {
        "s": 16,
        "marker": MARKERS[domain % len(MARKERS)],
        "facecolors": colour if fill == "full" else "none",
        "edgecolors": colour,
        "hatch": "||||||||" if fill == "hatched" else None,
        "linewidths": 0.8,
    }


def _add_legend(figure: Figure, classes: Sequence[str], domains: Sequence[str]) -> None:
    """Names the classes, as far as their markers differ, and the domains if there are several."""
    axes = figure.axes[0]
    handles = []
    if len(classes) <= MAX_CLASSES:
        for index, name in enumerate(classes):
            handles.append(axes.scatter([], [], label=escape_text(name), **_marker_options(index, 0)))
    if len(domains) > 1:
        for index, name in enumerate(domains):
            options = {**_marker_options(0, index), "facecolors": "0.5", "edgecolors": "0.5"}
            handles.append(axes.scatter([], [], label=escape_text(name), **options))
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=SMALL_FONT_SIZE, frameon=False)
