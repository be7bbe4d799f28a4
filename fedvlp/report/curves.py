"""Curves of several methods: accuracy over rounds, against communicated parameters, and against an option's value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedvlp.report.rows import Row, baseline, columns_of, domains_of, role_title, seed_counts, shown
from fedvlp.report.style import Look, Picture, add_legend, logarithmic, look, new_axes, written
from fedvlp.results.statistics import Cell, over_seeds

BAND = "Lines are means, bands one standard deviation over seeds"
BARS = "Points are means, bars one standard deviation over seeds"


def accuracy_over_rounds(rows: Sequence[Row], role: str) -> Picture:
    """Returns mean accuracy over rounds: on what tests above, on source validation below.

    Args:
        rows: at most ``MOST`` rows; one of a method that trains nothing is a level line.
        role: "held_out" or "test"; "validation" leaves out the panel above.
    """
    roles = list(dict.fromkeys([role, "validation"]))
    figure, panels = new_axes([f"{role_title(name)} (%)" for name in roles], "round", _with_baseline(rows))
    told = []
    for axes, name in zip(panels, roles, strict=True):
        for row in rows:
            style = look(row.index)
            told += [(_draw_rounds if row.is_trained else _draw_level)(axes, row, name, style)]
        told += _draw_baseline(axes, rows, name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    add_legend(figure, panels[0])
    domains = ", ".join(domains_of(rows, role))
    return Picture(
        figure,
        "Accuracy over rounds",
        f"Mean accuracy after each evaluated round on {role_title(role)} images ({domains})"
        f"{' above, on source validation below' if len(roles) > 1 else ''}. {BAND} ({seed_counts(rows)}).",
        "Line chart of accuracy over rounds. " + " ".join(text for text in told if text),
    )


def accuracy_over_communication(rows: Sequence[Row], role: str) -> Picture:
    """Returns mean accuracy against the parameters that a client sends and receives in a round, one line a method."""
    methods = list(dict.fromkeys(row.example.method for row in rows))
    figure, (axes,) = new_axes(
        [f"{role_title(role)} (%)"], "parameters sent and received by a client in a round", methods
    )
    told = []
    for index, method in enumerate(methods):
        own = [row for row in rows if row.example.method == method and row.means(role)]
        points = sorted((parameters(row), *row.means(role)) for row in own if parameters(row))
        told += _draw_points(axes, method, [(x, over_seeds(values)) for x, *values in points], look(index))
        told += [_draw_level(axes, row, role, look(index)) for row in own if not parameters(row)]
    logarithmic(axes)
    told += _draw_baseline(axes, rows, role)
    add_legend(figure, axes)
    return Picture(
        figure,
        "Accuracy against communication",
        f"Mean {role_title(role)} accuracy after the last round against what one client sends and receives in one "
        f"round. {BARS} ({seed_counts(rows)}){'' if all(map(parameters, rows)) else '; level lines send nothing'}.",
        "Chart of accuracy against communicated parameters, which grow by factors of ten. " + " ".join(told),
    )


def option_curve(method: str, option: str, rows: Mapping[float, Row], role: str) -> Picture:
    """Returns a method's accuracy against the values of one option: each domain's, and their mean in bold.

    Args:
        method: what the method is called.
        option: what the option is called.
        rows: by the option's value, rows that differ in nothing else.
        role: on which images.
    """
    values, columns = sorted(rows), columns_of(rows.values(), role)
    figure, (axes,) = new_axes([f"{role_title(role)} (%)"], written(option), list(columns))
    told = []
    for index, (title, name) in enumerate(columns.items()):
        found = [(value, over_seeds(rows[value].means(name))) for value in values if rows[value].means(name)]
        told += _draw_points(axes, title, found, look(index), is_bold=name == role)
    if values[0] > 0 and values[-1] / values[0] >= 10:
        logarithmic(axes)
    add_legend(figure, axes)
    return Picture(
        figure,
        f"{method}: {option}",
        f"{role_title(role).capitalize()} accuracy of {method} after the last round for values of {option}; all else "
        f"is equal. {BARS} ({seed_counts(rows.values())}).",
        f"Line chart of accuracy against {option}. " + " ".join(told),
    )


def parameters(row: Row) -> int:
    """Returns how many parameters a client sends and receives in one round."""
    sent = row.example.communication
    return sent.get("upload_parameters", 0) + sent.get("download_parameters", 0)


def _draw_rounds(axes: Axes, row: Row, name: str, style: Look) -> str:
    """Draws one row's curve and returns what it shows."""
    curve = row.curve(name)
    rounds = list(curve)
    mean = [cell.mean for cell in curve.values()]
    axes.plot(
        rounds,
        mean,
        color=style.colour,
        linestyle=style.line,
        marker=style.marker,
        markersize=3.5,
        linewidth=1.3,
        markevery=max(1, len(rounds) // 10),
        label=written(row.label),
    )
    low, high = ([cell.mean + sign * (cell.deviation or 0.0) for cell in curve.values()] for sign in (-1, 1))
    axes.fill_between(rounds, low, high, color=style.colour, alpha=0.15, linewidth=0)
    if not rounds:
        return ""
    ends = f"{mean[0]:.1f} % in round {rounds[0]}, {mean[-1]:.1f} % in round {rounds[-1]}"
    return f"{row.label}, {role_title(name)}: {ends}."


def _draw_points(
    axes: Axes, label: str, points: Sequence[tuple[float, Cell]], style: Look, is_bold: bool = False
) -> list[str]:
    """Draws means with their deviations, joined if no two share a place, and returns what they show."""
    if not points:
        return []
    places = [x for x, _ in points]
    is_one_line = len(set(places)) == len(places)
    axes.errorbar(
        places,
        [cell.mean for _, cell in points],
        [math.nan if cell.deviation is None else cell.deviation for _, cell in points],
        color=style.colour,
        linestyle=style.line if is_one_line else "none",
        marker=style.marker,
        markersize=4,
        linewidth=2.4 if is_bold else 1.3,
        elinewidth=1.0,
        capsize=2,
        label=written(label),
    )
    return [f"{label}: {'; '.join(f'{shown(cell)} % at {x:,g}' for x, cell in points)}."]


def _draw_level(axes: Axes, row: Row, name: str, style: Look) -> str:
    """Draws a row without curve as a level line and returns what it shows."""
    values = row.means(name)
    if not values:
        return ""
    cell = over_seeds(values)
    line = style.line if row.is_trained else ":"
    axes.axhline(cell.mean, color=style.colour, linestyle=line, linewidth=1.5, label=written(row.label))
    return f"{row.label}, {role_title(name)}: {shown(cell)} %."


def _draw_baseline(axes: Axes, rows: Sequence[Row], name: str) -> list[str]:
    """Draws zero-shot CLIP as a thin dotted line, if there is one, and returns what it shows."""
    level = baseline(rows, name)
    if level is None:
        return []
    axes.axhline(level, color="0.3", linestyle=":", linewidth=1.2, label="zero-shot CLIP")
    return [f"Zero-shot CLIP, {role_title(name)}: {level:.1f} %."]


def _with_baseline(rows: Sequence[Row]) -> list[str]:
    """Returns the labels that a legend has, zero-shot CLIP among them."""
    return [*(row.label for row in rows), "zero-shot CLIP"]
