"""One legend for all figures of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from fedvlp.results.style import Picture, SeriesStyle, series_style
from fedvlp.tools.report.html import Html, embedded, tag
from fedvlp.tools.report.series import MethodSeries, baseline

SIZE = (0.8, 0.2)
"""Of a sample of line and bar, in inches."""


def legend(series: Sequence[MethodSeries], role: str) -> Html:
    """Returns the name of each method beside a sample of its line and its bar."""
    entries = [_entry(one.label, _sample(series_style(one.index), one.is_trained)) for one in series]
    if baseline(series, role) is not None:
        entries.append(_entry("zero-shot CLIP", _dotted_sample()))
    return tag("ul", *entries, class_="legend", aria_label="Legend of the figures")


def _entry(name: str, figure: Figure) -> Html:
    # What the sample looks like helps nobody who can't see the figures, whose own texts name the methods.
    source = embedded(Picture(figure, f"sample of {name}", "", "").image(), "svg")
    return tag("li", tag("img", src=source, alt=""), f" {name}")


def _sample(style: SeriesStyle, is_trained: bool) -> Figure:
    """Returns a line with a marker and a bar beside it; the line of what trains nothing is dotted, without marker."""
    figure = Figure(figsize=SIZE)
    line: Any = style.line if is_trained else ":"
    marker = style.marker if is_trained else ""
    figure.add_artist(Line2D([0.02, 0.58], [0.5, 0.5], color=style.colour, linestyle=line, marker=marker, markersize=4))
    bar = Rectangle((0.7, 0.1), 0.28, 0.8, facecolor=style.colour, edgecolor="white", hatch=style.hatch, linewidth=0.5)
    figure.add_artist(bar)
    return figure


def _dotted_sample() -> Figure:
    figure = Figure(figsize=SIZE)
    figure.add_artist(Line2D([0.02, 0.98], [0.5, 0.5], color="black", linestyle=":", linewidth=1.4))
    return figure
