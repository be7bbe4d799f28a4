"""Which expert each part of an image went to, drawn over the image (TRIP)."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy as np
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray
from torch import Tensor

from fedvlp.results.figures import COLOURS, MAX_SERIES, SMALL_FONT_SIZE, Picture, escape_text
from fedvlp.tools.explain.samples import Samples

MAX_NUMBERED_SIDE = 16
"""Patches in a row up to which there is room for numbers in them."""

DROPPED = {"facecolor": "0.75", "edgecolor": "0.35", "hatch": "//////"}


def expert_shares(tokens: Int[Tensor, "P"], num_experts: int) -> list[float]:
    """Returns the share of the kept tokens that each expert got, the class token included: TRIP's pi.

    >>> from torch import tensor
    >>> expert_shares(tensor([0, 0, 1, -1]), 2)
    [0.6666666666666666, 0.3333333333333333]
    """
    kept = max(int((tokens >= 0).sum()), 1)
    return [int((tokens == expert).sum()) / kept for expert in range(num_experts)]


def token_map_picture(
    samples: Samples,
    pictures: NDArray[np.float32],
    experts: Int[Tensor, "B P"],
    names: Sequence[str],
    class_names: Sequence[str],
) -> Picture:
    """Returns each image beside its patches in the colours of their experts, with the experts' shares above.

    Args:
        samples: The images.
        pictures: The same to look at, in [0, 1].
        experts: The expert of each token, the class token first, -1 for a dropped one.
        names: Of the experts.
        class_names: All classes.
    """
    dropped = float((experts < 0).float().mean())
    caption = (
        "Each patch in the colour and with the number of the expert that its token went to, under the capacity of "
        "evaluation; hatched in grey: dropped, as its expert was full. Above: the experts' shares of the kept tokens, "
        f"the class token included, by which the prompts are mixed. {dropped:.1%} of these tokens were dropped."
    )
    alt_texts = [f"{samples.names[row]}: {_describe_counts(tokens, names)}" for row, tokens in enumerate(experts)]
    titles = [samples.title(row, class_names) for row in range(len(samples))]
    figure = _draw(titles, pictures, experts, names)
    return Picture(figure, "The expert of each patch", caption, ". ".join(alt_texts) + ".")


def _draw(
    titles: Sequence[str], pictures: NDArray[np.float32], experts: Int[Tensor, "B P"], names: Sequence[str]
) -> Figure:
    """Returns two images with their maps in each row, and a legend."""
    columns = min(len(titles), 2)
    rows = -(-len(titles) // columns)
    figure = Figure(figsize=(3.5 * columns, 1.95 * rows + 0.35), dpi=200, layout="constrained")
    panels = figure.subplots(rows, 2 * columns, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    for place, tokens in enumerate(experts):
        row, column = divmod(place, columns)
        image_axes = panels[row, 2 * column]
        image_axes.imshow(pictures[place])
        image_axes.set_title(escape_text(titles[place]), fontsize=SMALL_FONT_SIZE)
        map_axes = panels[row, 2 * column + 1]
        draw_token_map(map_axes, pictures[place], tokens)
        shares = ":".join(f"{100 * share:.0f}" for share in expert_shares(tokens, len(names)))
        map_axes.set_title(f"{shares} %", fontsize=SMALL_FONT_SIZE)
    _add_legend(figure, names)
    return figure


def draw_token_map(axes: Axes, picture: NDArray[np.float32], tokens: Int[Tensor, "P"]) -> None:
    """Draws the patches of an image, whose class token comes first, over the image in grey."""
    side = isqrt(len(tokens) - 1)
    height = picture.shape[0] / side
    width = picture.shape[1] / side
    axes.imshow(picture.mean(axis=2), cmap="gray", vmin=-0.3, vmax=1)
    for patch, expert in enumerate(tokens[1:].tolist()):
        row, column = divmod(patch, side)
        corner = (column * width - 0.5, row * height - 0.5)
        axes.add_patch(Rectangle(corner, width, height, linewidth=0.3, **_patch_options(expert), in_layout=False))
        if expert >= 0 and side <= MAX_NUMBERED_SIDE:
            middle = (corner[0] + width / 2, corner[1] + height / 2)
            axes.text(*middle, str(expert + 1), fontsize=28 / side, ha="center", va="center", in_layout=False)


def _patch_options(expert: int) -> dict[str, Any]:
    """Returns matplotlib's options for a patch whose token went to an expert, or was dropped."""
    if expert < 0:
        return DROPPED
    return {"facecolor": COLOURS[expert % MAX_SERIES], "edgecolor": "white", "alpha": 0.55}


def _add_legend(figure: Figure, names: Sequence[str]) -> None:
    handles = [Patch(**_patch_options(expert), label=escape_text(name)) for expert, name in enumerate(names)]
    handles.append(Patch(**_patch_options(-1), label="dropped"))
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=SMALL_FONT_SIZE, frameon=False)


def _describe_counts(tokens: Int[Tensor, "P"], names: Sequence[str]) -> str:
    patches = tokens[1:]
    counts = [f"{name}: {int((patches == expert).sum())}" for expert, name in enumerate(names)]
    return f"{', '.join(counts)}, dropped: {int((patches < 0).sum())} of {len(patches)} patches"
