"""Each domain's accuracy: bars of several methods, and boxes of several seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from fedvlp.report.rows import Row, baseline, columns_of, role_title, seed_counts, shown
from fedvlp.report.style import Look, Picture, add_legend, look, new_axes, written
from fedvlp.results.statistics import over_seeds


def domain_bars(rows: Sequence[Row], role: str) -> Picture:
    """Returns each domain's accuracy and their mean after the last round, a bar for each row, from zero.

    Args:
        rows: at most ``MOST`` rows.
        role: on which images.
    """
    columns = columns_of(rows, role)
    figure, (axes,) = new_axes([f"{role_title(role)} (%)"], "", [row.label for row in rows])
    width = min(0.8 / len(rows), 0.25)
    told = [
        _draw_row(axes, row, columns, (place + 0.5 - len(rows) / 2) * width, width) for place, row in enumerate(rows)
    ]
    told += _draw_baselines(axes, rows, list(columns.values()))
    _name_places(axes, list(columns))
    axes.grid(visible=False, axis="x")
    add_legend(figure, axes)
    return Picture(
        figure,
        "Accuracy of each domain",
        f"{role_title(role).capitalize()} accuracy after the last round. Bars are means, lines on them one standard "
        f"deviation over seeds ({seed_counts(rows)}){'; dotted: zero-shot CLIP' if len(told) > len(rows) else ''}.",
        "Bar chart of accuracy by domain. " + " ".join(told),
    )


def seed_boxes(
    accuracies: Mapping[str, Sequence[float]], subject: str, seeds: str, indices: Sequence[int] | None = None
) -> Picture:
    """Returns a box for each name, over what several seeds gave; the seeds themselves are dots.

    Args:
        accuracies: in percent, of each seed, by the name of a domain or of a row.
        subject: whose accuracy of what this is, such as "TRIP, held-out".
        seeds: what was drawn anew, such as "training" or "inference".
        indices: those of each name's look; 0, 1, 2 … if not given.
    """
    names = list(accuracies)
    figure, (axes,) = new_axes(["accuracy (%)"], "", names if _are_long(names) else ())
    looks = [look(index) for index in indices or range(len(names))]
    told = [_draw_box(axes, place, name, accuracies[name], looks[place]) for place, name in enumerate(names)]
    axes.set_xlim(-0.6, len(names) - 0.4)
    _name_places(axes, () if _are_long(names) else names)
    axes.grid(visible=False, axis="x")
    if _are_long(names):
        add_legend(figure, axes)
    counts = {len(values) for values in accuracies.values()}
    return Picture(
        figure,
        f"Spread over {seeds} seeds",
        f"{subject} accuracy under {' to '.join(map(str, sorted({min(counts), max(counts)})))} {seeds} seeds: "
        "a dot each, the middle half in the box, the median as a line, whiskers to 1.5 times the box.",
        f"Box plot of accuracy over {seeds} seeds. " + " ".join(told),
    )


def _draw_row(axes: Axes, row: Row, columns: Mapping[str, str], shift: float, width: float) -> str:
    """Draws one row's bars, one a column, and returns what they show."""
    style, found = look(row.index), {title: row.means(name) for title, name in columns.items()}
    cells = {title: over_seeds(values) for title, values in found.items() if values}
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
        label=written(row.label),
    )
    return f"{row.label}: {', '.join(f'{title} {shown(cell)} %' for title, cell in cells.items())}."


def _draw_box(axes: Axes, place: int, name: str, values: Sequence[float], style: Look) -> str:
    """Draws one box with its dots and returns what they show."""
    dots = list(values)
    box = axes.boxplot(dots, positions=[place], widths=0.5, showfliers=False, patch_artist=True, manage_ticks=False)
    box["boxes"][0].set(facecolor="white", edgecolor=style.colour)
    box["medians"][0].set(color="black", linewidth=1.5)
    axes.plot([place] * len(dots), dots, style.marker, color=style.colour, markersize=3.5, label=written(name))
    return f"{name}: median {statistics.median(dots):.1f} %, {min(dots):.1f} to {max(dots):.1f} %."


def _draw_baselines(axes: Axes, rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Draws zero-shot CLIP across each group of bars, if there is one, and returns what it shows."""
    levels = {place: level for place, name in enumerate(names) if (level := baseline(rows, name)) is not None}
    for place, level in levels.items():
        label = "zero-shot CLIP" if place == min(levels) else None
        axes.plot([place - 0.45, place + 0.45], [level] * 2, color="black", linestyle=":", linewidth=1.4, label=label)
    numbers = [f"{names[place].partition('/')[2] or 'mean'} {level:.1f} %" for place, level in levels.items()]
    return [f"Zero-shot CLIP: {', '.join(numbers)}."] if numbers else []


def _name_places(axes: Axes, names: Sequence[str]) -> None:
    """Writes names below places 0, 1, 2 …, aslant where they are long."""
    axes.set_xticks(range(len(names)), [written(name) for name in names])
    axes.tick_params(axis="x", length=0)
    if names and _are_long(names):
        for text in axes.get_xticklabels():
            text.set(rotation=30, horizontalalignment="right", rotation_mode="anchor")


def _are_long(names: Sequence[str]) -> bool:
    """Whether names do not fit side by side below a figure."""
    return max(map(len, names)) * len(names) > 44
