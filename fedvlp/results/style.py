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

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8A00")
"""After Okabe and Ito, Color universal design, 2008."""

# No pattern of dots alone: dotted lines are zero-shot CLIP's.
DASHES = (
    (4, 1.5),
    (6, 1.5, 1, 1.5),
    (2, 1),
    (8, 1),
    (3, 1, 1, 1, 1, 1),
    (1.5, 2.5),
    (6, 2, 2, 2),
)
LINES: tuple[Any, ...] = ("-", *((0, dashes) for dashes in DASHES))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

# Lines alone: hatches of dots make large files.
HATCHES = ("", "///", "\\\\\\", "xx", "--", "||", "++", "//--")

MAX_SERIES = len(COLOURS)
"""How many series one figure can show so that a reader can tell them apart."""

COLUMN_WIDTH = 3.5
"""Width of a paper's column, in inches."""

FONT_SIZE = 8
SMALL_FONT_SIZE = 7
MAX_LINE_LENGTH = 52
"""How many characters fit into a line of a column."""


@dataclass(frozen=True)
class SeriesStyle:
    """How one series is drawn everywhere: no two of ``MAX_SERIES`` neighbours share any of these.

    Attributes:
        colour: of lines, markers and bars.
        line: matplotlib's ``linestyle``.
        marker: matplotlib's ``marker``.
        hatch: of bars, matplotlib's ``hatch``.
    """

    colour: str
    line: Any
    marker: str
    hatch: str


@dataclass(frozen=True)
class Picture:
    """A figure with its title, caption and a description for readers who can't see it.

    Attributes:
        figure: made without pyplot.
        title: a few words.
        caption: what is drawn, of how many runs, and what bands or bars mean.
        alt: a description of what can be seen.
    """

    figure: Figure
    title: str
    caption: str
    alt: str

    def image(self, kind: Literal["svg", "png"] = "svg") -> bytes:
        """Returns the figure as a file's content; the same for the same figure."""
        file = io.BytesIO()
        # An SVG has a date and random identifiers in it by default.
        metadata = {"Date": None} if kind == "svg" else None
        with matplotlib.rc_context({"svg.hashsalt": self.title}):
            self.figure.savefig(file, format=kind, metadata=metadata)
        return file.getvalue()


def series_style(index: int) -> SeriesStyle:
    """Returns the style of the series with this index."""
    place = index % MAX_SERIES
    return SeriesStyle(COLOURS[place], LINES[place], MARKERS[place], HATCHES[place])


def new_axes(vertical: Sequence[str], horizontal: str, labels: Sequence[str] = ()) -> tuple[Figure, list[Axes]]:
    """Returns a figure of panels above each other that share the horizontal axis, with room for a legend below.

    Args:
        vertical: what each panel's vertical axis shows.
        horizontal: what the horizontal axis shows.
        labels: what the legend will name.
    """
    legend_lines = sum(escape_text(label).count("\n") + 1 for label in labels)
    height = 0.45 + 1.85 * len(vertical) + 0.14 * (legend_lines / _legend_columns(labels))
    figure = Figure(figsize=(COLUMN_WIDTH, height), dpi=300, layout="constrained")
    panels = list(figure.subplots(len(vertical), 1, sharex=True, squeeze=False)[:, 0])
    for axes, name in zip(panels, vertical, strict=True):
        axes.set_ylabel(name, fontsize=FONT_SIZE)
        axes.tick_params(labelsize=SMALL_FONT_SIZE)
        axes.grid(color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel(horizontal, fontsize=FONT_SIZE)
    return figure, panels


def add_legend(figure: Figure, axes: Axes) -> None:
    """Adds a legend of what the axes show, below the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=_legend_columns(labels),
        fontsize=SMALL_FONT_SIZE,
        frameon=False,
        handlelength=3.2,
        columnspacing=1.2,
    )


def escape_text(text: str) -> str:
    r"""Escapes a string so that matplotlib draws it unchanged, in lines that fit into a column.

    >>> print(escape_text("a_$b$"))
    a_\$b\$
    """
    wrapped = "\n".join(textwrap.wrap(text, MAX_LINE_LENGTH, break_on_hyphens=False)) or text
    escaped = wrapped.replace("$", r"\$")
    # Matplotlib leaves labels that begin with an underscore out of legends.
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
