"""The one style of all figures: readable in a column of a paper, in grey, and by colour-blind readers."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8A00")  # Okabe and Ito
DASHES = (
    (4, 1.5),
    (6, 1.5, 1, 1.5),
    (2, 1),
    (8, 1),
    (3, 1, 1, 1, 1, 1),
    (1.5, 2.5),
    (6, 2, 2, 2),
)  # dots are zero-shot's
LINES: tuple[Any, ...] = ("-", *((0, dashes) for dashes in DASHES))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "///", "\\\\\\", "xx", "--", "||", "++", "//--")  # lines alone: dots would make large files
MOST = len(COLOURS)
"""How many series one figure can show so that a reader can tell them apart."""

WIDTH = 3.5
"""Width of a column, in inches."""

TEXT, SMALL = 8, 7


@dataclass(frozen=True)
class Look:
    """How one series is drawn everywhere: no two of ``MOST`` neighbours share any of these."""

    colour: str
    line: Any
    marker: str
    hatch: str


@dataclass(frozen=True)
class Picture:
    """A figure with what a reader needs to understand it, and what one needs who can't see it.

    Attributes:
        figure: made without pyplot.
        title: a few words.
        caption: what is drawn, of how many runs, and what bands or bars mean.
        alt: what can be seen, in words and numbers.
    """

    figure: Figure
    title: str
    caption: str
    alt: str

    def image(self, kind: Literal["svg", "png"] = "svg") -> bytes:
        """Returns the figure as a file's content; the same for the same figure."""
        file = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": self.title}):
            self.figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
        return file.getvalue()


def look(index: int) -> Look:
    """Returns the look of the series with this index."""
    return Look(*(values[index % len(values)] for values in (COLOURS, LINES, MARKERS, HATCHES)))


def new_axes(vertical: Sequence[str], horizontal: str, labels: Sequence[str] = ()) -> tuple[Figure, list[Axes]]:
    """Returns a figure of panels above each other that share the horizontal axis, with room for a legend below.

    Args:
        vertical: what each panel's vertical axis shows.
        horizontal: what the horizontal axis shows.
        labels: what the legend will name.
    """
    lines = sum(name.count("\n") + 1 for name in map(written, labels)) / _legend_columns(labels)
    height = 0.45 + 1.85 * len(vertical) + 0.14 * lines
    figure = Figure(figsize=(WIDTH, height), dpi=300, layout="constrained")
    panels = list(figure.subplots(len(vertical), 1, sharex=True, squeeze=False)[:, 0])
    for axes, name in zip(panels, vertical, strict=True):
        axes.set_ylabel(name, fontsize=TEXT)
        axes.tick_params(labelsize=SMALL)
        axes.grid(color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel(horizontal, fontsize=TEXT)
    return figure, panels


def add_legend(figure: Figure, axes: Axes) -> None:
    """Names what the axes show, below the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=_legend_columns(labels),
        fontsize=SMALL,
        frameon=False,
        handlelength=3.2,
        columnspacing=1.2,
    )


def written(text: str) -> str:
    r"""Returns a text as matplotlib must be given it to write it as it is, in lines that fit into a column.

    >>> print(written("a_$b$"))
    a_\$b\$
    """
    wrapped = "\n".join(textwrap.wrap(text, 52, break_on_hyphens=False)) or text
    escaped = wrapped.replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def _legend_columns(labels: Sequence[str]) -> int:
    """Returns how many labels fit side by side."""
    return 2 if labels and max(map(len, labels)) <= 22 else 1


def logarithmic(axes: Axes) -> None:
    """Makes the horizontal axis logarithmic, with whole numbers such as 2,000 at its marks."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
