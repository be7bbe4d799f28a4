"""The picture of t-SNE: panels side by side, colour by class and marker by domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from fedvlp.results.style import (
    COLOURS,
    COLUMN_WIDTH,
    FONT_SIZE,
    MARKERS,
    MAX_SERIES,
    SMALL_FONT_SIZE,
    Picture,
    escape_text,
)
from fedvlp.tools.explain.embeddings import Points, neighbour_agreement

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
