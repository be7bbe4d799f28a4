"""Curves of several methods: accuracy over rounds, against communicated parameters, and against an option's value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedvlp.core.roles import role_title
from fedvlp.results.rendering import format_cell
from fedvlp.results.statistics import Cell, over_seeds
from fedvlp.results.style import Picture, SeriesStyle, add_legend, escape_text, logarithmic, new_axes, series_style
from fedvlp.tools.report.series import MethodSeries, baseline, count_seeds, domain_columns, domains_of

BAND = "Lines are means, bands one standard deviation over seeds"
BARS = "Points are means, bars one standard deviation over seeds"


def accuracy_over_rounds(series: Sequence[MethodSeries], role: str, legend: bool = True) -> Picture:
    """Returns mean accuracy over rounds: on what tests above, on source validation below.

    Args:
        series: at most ``MAX_SERIES`` methods; one that trains nothing is a level line.
        role: "held_out" or "test"; "validation" leaves out the panel above.
        legend: whether the figure names the methods itself.
    """
    roles = list(dict.fromkeys([role, "validation"]))
    labels = [*(method.label for method in series), "zero-shot CLIP"] if legend else []
    figure, panels = new_axes([f"{role_title(name)} (%)" for name in roles], "round", labels)
    alt_texts: list[str] = []
    for axes, name in zip(panels, roles, strict=True):
        for method in series:
            draw = _draw_rounds if method.is_trained else _draw_level
            alt_texts.append(draw(axes, method, name, series_style(method.index)))
        alt_texts += _draw_baseline(axes, series, name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if legend:
        add_legend(figure, panels[0])
    domains = ", ".join(domains_of(series, role))
    panels_in_words = " above, on source validation below" if len(roles) > 1 else ""
    return Picture(
        figure,
        "Accuracy over rounds",
        f"Mean accuracy after each evaluated round on {role_title(role)} images ({domains}){panels_in_words}. "
        f"{BAND} ({count_seeds(series)}).",
        "Line chart of accuracy over rounds. " + " ".join(text for text in alt_texts if text),
    )


def accuracy_over_communication(series: Sequence[MethodSeries], role: str, legend: bool = True) -> Picture:
    """Returns mean accuracy against the parameters that a client sends and receives in a round, one line a method.

    Args:
        series: of at most ``MAX_SERIES`` methods.
        role: on which images.
        legend: whether the figure names the methods itself.
    """
    methods = list(dict.fromkeys(one.example.method for one in series))
    figure, (axes,) = new_axes(
        [f"{role_title(role)} (%)"], "parameters sent and received by a client in a round", methods if legend else ()
    )
    alt_texts: list[str] = []
    for index, method in enumerate(methods):
        own = [one for one in series if one.example.method == method and one.means(role)]
        style = series_style(index)
        alt_texts += _draw_points(axes, method, _points_of_communication(own, role), style)
        # A method that sends nothing has no place on a logarithmic axis.
        alt_texts += [_draw_level(axes, one, role, style) for one in own if not one.parameters]
    logarithmic(axes)
    alt_texts += _draw_baseline(axes, series, role)
    if legend:
        add_legend(figure, axes)
    levels = "" if all(one.parameters for one in series) else "; level lines send nothing"
    return Picture(
        figure,
        "Accuracy against communication",
        f"Mean {role_title(role)} accuracy after the last round against what one client sends and receives in one "
        f"round. {BARS} ({count_seeds(series)}){levels}.",
        "Chart of accuracy against communicated parameters, which grow by factors of ten. " + " ".join(alt_texts),
    )


def option_curve(method: str, option: str, series: Mapping[float, MethodSeries], role: str) -> Picture:
    """Returns a method's accuracy against the values of one option: each domain's, and their mean in bold.

    Args:
        method: what the method is called.
        option: what the option is called.
        series: by the option's value, runs that differ in nothing else.
        role: on which images.
    """
    columns = domain_columns(series.values(), role)
    figure, (axes,) = new_axes([f"{role_title(role)} (%)"], escape_text(option), list(columns))
    alt_texts: list[str] = []
    for index, (title, name) in enumerate(columns.items()):
        points = _points_of_option(series, name)
        alt_texts += _draw_points(axes, title, points, series_style(index), is_bold=name == role)
    smallest = min(series)
    if smallest > 0 and max(series) / smallest >= 10:
        logarithmic(axes)
    add_legend(figure, axes)
    return Picture(
        figure,
        f"{method}: {option}",
        f"{role_title(role).capitalize()} accuracy of {method} after the last round for values of {option}; all else "
        f"is equal. {BARS} ({count_seeds(series.values())}).",
        f"Line chart of accuracy against {option}. " + " ".join(alt_texts),
    )


def _points_of_communication(series: Sequence[MethodSeries], role: str) -> list[tuple[float, Cell]]:
    """Returns parameters and accuracy of the series that send any, by parameters and then by accuracies."""
    points = sorted((one.parameters, one.means(role)) for one in series if one.parameters)
    return [(parameters, over_seeds(means)) for parameters, means in points]


def _points_of_option(series: Mapping[float, MethodSeries], name: str) -> list[tuple[float, Cell]]:
    """Returns the option's values that have an accuracy, in order, with it."""
    points = []
    for value in sorted(series):
        means = series[value].means(name)
        if means:
            points.append((value, over_seeds(means)))
    return points


def _draw_rounds(axes: Axes, method: MethodSeries, name: str, style: SeriesStyle) -> str:
    """Draws one method's curve and returns what it shows."""
    curve = method.curve(name)
    rounds = list(curve)
    means = [cell.mean for cell in curve.values()]
    axes.plot(
        rounds,
        means,
        color=style.colour,
        linestyle=style.line,
        marker=style.marker,
        markersize=3.5,
        linewidth=1.3,
        markevery=max(1, len(rounds) // 10),
        label=escape_text(method.label),
    )
    low = [cell.mean - (cell.deviation or 0.0) for cell in curve.values()]
    high = [cell.mean + (cell.deviation or 0.0) for cell in curve.values()]
    axes.fill_between(rounds, low, high, color=style.colour, alpha=0.15, linewidth=0)
    if not rounds:
        return ""
    ends = f"{means[0]:.1f} % in round {rounds[0]}, {means[-1]:.1f} % in round {rounds[-1]}"
    return f"{method.label}, {role_title(name)}: {ends}."


def _draw_points(
    axes: Axes, label: str, points: Sequence[tuple[float, Cell]], style: SeriesStyle, is_bold: bool = False
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
        label=escape_text(label),
    )
    return [f"{label}: {'; '.join(f'{format_cell(cell)} % at {x:,g}' for x, cell in points)}."]


def _draw_level(axes: Axes, method: MethodSeries, name: str, style: SeriesStyle) -> str:
    """Draws a method without curve as a level line and returns what it shows."""
    means = method.means(name)
    if not means:
        return ""
    cell = over_seeds(means)
    line = style.line if method.is_trained else ":"
    axes.axhline(cell.mean, color=style.colour, linestyle=line, linewidth=1.5, label=escape_text(method.label))
    return f"{method.label}, {role_title(name)}: {format_cell(cell)} %."


def _draw_baseline(axes: Axes, series: Sequence[MethodSeries], name: str) -> list[str]:
    """Draws zero-shot CLIP as a thin dotted line, if there is one, and returns what it shows."""
    level = baseline(series, name)
    if level is None:
        return []
    axes.axhline(level, color="0.3", linestyle=":", linewidth=1.2, label="zero-shot CLIP")
    return [f"Zero-shot CLIP, {role_title(name)}: {level:.1f} %."]
