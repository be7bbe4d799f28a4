"""Target images as points in the plane, before and after training (PLAN, Fig. 6).

t-SNE is that of van der Maaten and Hinton, "Visualizing data using t-SNE", JMLR 2008, as scikit-learn has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.explain.hooks import ChangesImageFeatures
from fedvlp.report.style import COLOURS, MARKERS, MOST, SMALL, TEXT, WIDTH, Picture, written
from fedvlp.utils.errors import UserError

Points = NDArray[np.float32]
FILLS = ("full", "empty", "hatched")
"""Of markers, one after another where there are more classes than colours."""


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
    """Returns places in the plane [N, 2] where near points were near; equal calls give equal places.

    Raises:
        UserError: As :func:`check_tsne`.
    """
    chosen = check_tsne(len(features), perplexity)
    from sklearn.manifold import TSNE

    made = TSNE(perplexity=chosen, init="pca", random_state=seed).fit_transform(features.double().numpy())
    return np.asarray(made, dtype=np.float32)


@torch.no_grad()
def embedding(
    module: FederatedModule, trained: FederatedModule, images: Float[Tensor, "B 3 H V"]
) -> Float[Tensor, "B d"]:
    """Returns what t-SNE is shown of images: unit image features where the trained method changes these, else logits.

    A method that leaves image features as they are differs from CLIP in its logits alone; of these the mean over
    classes is taken off, which no probability depends on.

    Args:
        module: Whose view of the images: the trained method, or what it stands beside.
        trained: The trained method.
        images: A batch on its device.
    """
    if not isinstance(trained, ChangesImageFeatures):
        logits: Tensor = module(images).float()
        return logits - logits.mean(dim=1, keepdim=True)
    clip: Any = module.clip
    features = module.image_features(images) if isinstance(module, ChangesImageFeatures) else clip.encode_image(images)
    return F.normalize(features.float(), dim=-1)


def tsne_picture(
    panels: Mapping[str, Points],
    labels: Sequence[int],
    domains: Sequence[str],
    class_names: Sequence[str],
    shown: str,
) -> Picture:
    """Returns the panels side by side, colour by class and marker by domain.

    Args:
        panels: Places [N, 2] by whose they are.
        labels: Class of each point.
        domains: Domain of each point.
        class_names: Names of the classes.
        shown: What the points are and how they were placed, in the caption's words.
    """
    known = list(dict.fromkeys(domains))
    where = ", ".join(known)
    scores = [f"{title}: {neighbour_agreement(points, labels):.0%}" for title, points in panels.items()]
    agreement = f"Share of points whose nearest neighbour in the plane is of their class: {'; '.join(scores)}."
    caption = (
        f"t-SNE of {shown}, for {len(labels)} images of {where}, which nobody trained on. Each panel has a plane of "
        "its own; only which points are near each other can be compared. Colour and fill: class"
        f"{'. Marker: domain' if len(known) > 1 else ''}. {agreement}"
    )
    figure = _draw(panels, labels, [known.index(name) for name in domains], class_names)
    _legend(figure, [class_names[label] for label in sorted(set(labels))], known)
    return Picture(figure, f"Images of {where} before and after training", caption, f"Scatter plots. {agreement}")


def _draw(
    panels: Mapping[str, Points], labels: Sequence[int], domains: Sequence[int], class_names: Sequence[str]
) -> Figure:
    """Returns the panels without a legend."""
    figure = Figure(figsize=(WIDTH * len(panels), WIDTH + 0.9), dpi=200, layout="constrained")
    for axes, (title, points) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        axes.set_title(written(title), fontsize=TEXT)
        axes.set(xticks=[], yticks=[])
        _scatter(axes, points, np.asarray(labels), domains, class_names)
    return figure


def neighbour_agreement(points: Points, labels: Sequence[int]) -> float:
    """Returns the share of points whose nearest other point has the same label.

    >>> neighbour_agreement(np.asarray([[0, 0], [0, 1], [9, 9]], dtype=np.float32), [1, 1, 2])
    0.6666666666666666
    """
    distances = torch.cdist(torch.from_numpy(points).double(), torch.from_numpy(points).double())
    nearest = distances.fill_diagonal_(torch.inf).argmin(dim=1)
    return float((torch.as_tensor(labels)[nearest] == torch.as_tensor(labels)).double().mean())


def _scatter(
    axes: Axes, points: Points, labels: NDArray[Any], domains: Sequence[int], class_names: Sequence[str]
) -> None:
    """Draws one panel, with the classes' names in their middles where there are more than a legend can tell apart."""
    places, present = np.asarray(domains), np.unique(labels).tolist()
    for index, label in enumerate(present):
        for domain in sorted(set(domains)):
            chosen = points[(labels == label) & (places == domain)]
            axes.scatter(chosen[:, 0], chosen[:, 1], **_marker(index, domain))
        if len(present) > MOST * len(FILLS):
            middle = np.median(points[labels == label], axis=0)
            text = axes.text(float(middle[0]), float(middle[1]), written(class_names[label]), fontsize=5)
            text.set(ha="center", va="center", path_effects=[withStroke(linewidth=1.5, foreground="white")])


def _marker(index: int, domain: int) -> dict[str, Any]:
    """Returns how points of the class at this index and of a domain are drawn."""
    colour = COLOURS[index % MOST]
    fill = FILLS[index // MOST % len(FILLS)]
    return {
        "s": 16,
        "marker": MARKERS[domain % len(MARKERS)],
        "facecolors": colour if fill == "full" else "none",
        "edgecolors": colour,
        "hatch": "||||||||" if fill == "hatched" else None,
        "linewidths": 0.8,
    }


def _legend(figure: Figure, classes: Sequence[str], domains: Sequence[str]) -> None:
    """Names classes, as far as their looks differ, and domains if there are several."""
    axes = figure.axes[0]
    named = classes if len(classes) <= MOST * len(FILLS) else []
    handles = [axes.scatter([], [], label=written(name), **_marker(index, 0)) for index, name in enumerate(named)]
    if len(domains) > 1:
        looks = [{**_marker(0, index), "facecolors": "0.5", "edgecolors": "0.5"} for index in range(len(domains))]
        handles += [
            axes.scatter([], [], label=written(name), **look) for name, look in zip(domains, looks, strict=True)
        ]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=SMALL, frameon=False)
