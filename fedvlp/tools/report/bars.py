"""Each domain's accuracy: bars of several methods, and boxes of several seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from fedvlp.core.roles import role_title
from fedvlp.results.rendering import format_cell
from fedvlp.results.statistics import over_seeds
from fedvlp.results.style import Picture, SeriesStyle, add_legend, escape_text, new_axes, series_style
from fedvlp.tools.report.series import MethodSeries, baseline, count_seeds, domain_columns, format_extent

MAX_LABEL_LENGTH = 44
"""How many characters fit side by side below a figure."""


def domain_bars(series: Sequence[MethodSeries], role: str, legend: bool = True) -> Picture:
    """Returns each domain's accuracy and their mean after the last round, a bar for each method, from zero.

    Args:
        series: at most ``MAX_SERIES`` methods.
        role: on which images.
        legend: whether the figure names the methods itself.
    """
    columns = domain_columns(series, role)
    labels = [method.label for method in series] if legend else []
    figure, (axes,) = new_axes([f"{role_title(role)} (%)"], "", labels)
    width = min(0.8 / len(series), 0.25)
    alt_texts = []
    for place, method in enumerate(series):
        shift = (place + 0.5 - len(series) / 2) * width
        alt_texts.append(_draw_bars(axes, method, columns, shift, width))
    baseline_texts = _draw_baselines(axes, series, columns)
    _name_places(axes, list(columns))
    axes.grid(visible=False, axis="x")
    if legend:
        add_legend(figure, axes)
    dotted = "; dotted: zero-shot CLIP" if baseline_texts else ""
    return Picture(
        figure,
        "Accuracy of each domain",
        f"{role_title(role).capitalize()} accuracy after the last round. Bars are means, lines on them one standard "
        f"deviation over seeds ({count_seeds(series)}){dotted}.",
        "Bar chart of accuracy by domain. " + " ".join([*alt_texts, *baseline_texts]),
    )


def seed_boxes(
    accuracies: Mapping[str, Sequence[float]], subject: str, seeds: str, indices: Sequence[int] | None = None
) -> Picture:
    """Returns a box for each name, over what several seeds gave; the seeds themselves are dots.

    Args:
        accuracies: in percent, of each seed, by the name of a domain or of a method.
        subject: whose accuracy of what this is, such as "TRIP, held-out".
        seeds: what was drawn anew, such as "training" or "inference".
        indices: those of each name's style; 0, 1, 2 … if not given.
    """
    names = list(accuracies)
    has_long_names = _are_long(names)
    styles = [series_style(index) for index in indices or range(len(names))]
    figure, (axes,) = new_axes(["accuracy (%)"], "", names if has_long_names else ())
    alt_texts = [_draw_box(axes, place, name, accuracies[name], styles[place]) for place, name in enumerate(names)]
    axes.set_xlim(-0.6, len(names) - 0.4)
    # Long names stand in a legend, others below their boxes.
    _name_places(axes, () if has_long_names else names)
    axes.grid(visible=False, axis="x")
    if has_long_names:
        add_legend(figure, axes)
    counts = format_extent(len(values) for values in accuracies.values())
    return Picture(
        figure,
        f"Spread over {seeds} seeds",
        f"{subject} accuracy under {counts} {seeds} seeds: "
        "a dot each, the middle half in the box, the median as a line, whiskers to 1.5 times the box.",
        f"Box plot of accuracy over {seeds} seeds. " + " ".join(alt_texts),
    )


def _draw_bars(axes: Axes, method: MethodSeries, columns: Mapping[str, str], shift: float, width: float) -> str:
    """Draws one method's bars, one a column, and returns what they show."""
    style = series_style(method.index)
    means = {title: method.means(name) for title, name in columns.items()}
    cells = {title: over_seeds(values) for title, values in means.items() if values}
    axes.bar(
        [list(columns).index(title) + shift for title in cells],
        [cell.mean for cell in cells.values()],
        width,
        yerr=[math.nan if cell.deviation is None else cell.deviation for cell in cells.values()],
        color=style.colour,
        hatch=style.hatch,
        edgecolor="white",
        linewidth=0.5,
        error_kw={"elinewidth": 1.0, "capsize": 1.5},
        label=escape_text(method.label),
    )
    return f"{method.label}: {', '.join(f'{title} {format_cell(cell)} %' for title, cell in cells.items())}."


def _draw_box(axes: Axes, place: int, name: str, values: Sequence[float], style: SeriesStyle) -> str:
    """Draws one box with its dots and returns what they show."""
    dots = list(values)
    box = axes.boxplot(dots, positions=[place], widths=0.5, showfliers=False, patch_artist=True, manage_ticks=False)
    box["boxes"][0].set(facecolor="white", edgecolor=style.colour)
    box["medians"][0].set(color="black", linewidth=1.5)
    axes.plot([place] * len(dots), dots, style.marker, color=style.colour, markersize=3.5, label=escape_text(name))
    return f"{name}: median {statistics.median(dots):.1f} %, {min(dots):.1f} to {max(dots):.1f} %."


def _draw_baselines(axes: Axes, series: Sequence[MethodSeries], columns: Mapping[str, str]) -> list[str]:
    """Draws zero-shot CLIP across each group of bars, if there is one, and returns what it shows."""
    parts: list[str] = []
    for place, (title, name) in enumerate(columns.items()):
        level = baseline(series, name)
        if level is None:
            continue
        # Only the first line has a label, so that the legend names it once.
        label = None if parts else "zero-shot CLIP"
        axes.plot([place - 0.45, place + 0.45], [level] * 2, color="black", linestyle=":", linewidth=1.4, label=label)
        parts.append(f"{title} {level:.1f} %")
    return [f"Zero-shot CLIP: {', '.join(parts)}."] if parts else []


def _name_places(axes: Axes, names: Sequence[str]) -> None:
    """Writes names below places 0, 1, 2 …, aslant where they are long."""
    axes.set_xticks(range(len(names)), [escape_text(name) for name in names])
    axes.tick_params(axis="x", length=0)
    if names and _are_long(names):
        for text in axes.get_xticklabels():
            text.set(rotation=30, horizontalalignment="right", rotation_mode="anchor")


def _are_long(names: Sequence[str]) -> bool:
    return max(map(len, names)) * len(names) > MAX_LABEL_LENGTH
