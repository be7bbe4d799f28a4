"""Figures of a table: accuracy over rounds, by domain, and by communication."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fedvlp.core.roles import ROLES
from fedvlp.results.figures import (
    BASELINE_LINES,
    HATCHES,
    MAX_SERIES,
    Picture,
    add_legend,
    escape_text,
    new_axes,
    series_style,
)
from fedvlp.tools.compare.grouping import config_name
from fedvlp.tools.compare.tables import AVERAGE, UNTRAINED, Row, Table, costs

BARS = "Points are means; bars are one standard deviation over seeds"


def draw_figures(table: Table) -> Iterator[Picture]:
    """Draw the figures of a table; methods beyond ``MAX_SERIES`` are spread over several figures."""
    methods = table.compared_rows
    trained = [row for row in methods if row[1] != UNTRAINED]
    histories = history_frame(table, table.role)
    if histories["round"].nunique() > 1:
        yield from _draw_parts(table, trained, accuracy_over_rounds)
    if any(costs(table.runs[method]) for method, _ in trained):
        names = list(dict.fromkeys(config_name(table.runs[method][0]) for method, _ in trained))
        yield from _draw_parts(table, names, accuracy_over_communication)
    yield from _draw_parts(table, methods, domain_bars)


def history_frame(table: Table, role: str) -> pd.DataFrame:
    """Tabulate the mean accuracy over domains: ``method``, ``seed``, ``round`` and ``accuracy`` in percent.

    A round of a seed is skipped unless it was evaluated for all choices of held-out domains.
    """
    values = []
    for method, runs in table.runs.items():
        for run in runs:
            measured = [row for row in run.history if role in row]
            values += [(method, run.seed, row["round"], run.held_out, row[role]) for row in measured]
    frame = pd.DataFrame(values, columns=["method", "seed", "round", "held_out", "accuracy"])
    frame = frame.drop_duplicates(["method", "seed", "round", "held_out"], keep="last")
    choices = len({run.held_out for run in table.records})
    groups = frame.groupby(["method", "seed", "round"], sort=False)["accuracy"]
    means = groups.agg(["mean", "count"]).reset_index()
    return means[means["count"] == choices].rename(columns={"mean": "accuracy"}).drop(columns="count")


def accuracy_over_rounds(table: Table, rows: Sequence[Row] | None = None) -> Picture:
    """Draw mean accuracy over rounds for at most ``MAX_SERIES`` rows, on compared images and on source validation.

    The default are the first rows.
    """
    if rows is None:
        rows = [row for row in table.compared_rows if row[1] != UNTRAINED][:MAX_SERIES]
    roles = list(dict.fromkeys([table.role, "validation"]))
    figure, panels = new_axes(
        [f"{ROLES[role].images} (%)" for role in roles], "round", [*_labels(rows), *BASELINE_LINES]
    )
    for axes, role in zip(panels, roles, strict=True):
        histories = history_frame(table, role)
        for index, (method, _) in enumerate(rows):
            curve = histories[histories["method"] == method].groupby("round")["accuracy"].agg(["mean", "std", "count"])
            # A round that only some seeds evaluated would cause a step in the curve.
            curve = curve[curve["count"] == curve["count"].max()]
            style = series_style(index)
            marks: dict[str, Any] = {"markersize": 3.5, "linewidth": 1.3, "markevery": max(1, len(curve) // 10)}
            axes.plot(curve.index, curve["mean"], **style, **marks, label=escape_text(method))
            deviation = curve["std"].fillna(0.0)  # NaN for a single seed
            band = (curve["mean"] - deviation, curve["mean"] + deviation)
            axes.fill_between(curve.index, *band, color=style["color"], alpha=0.15, linewidth=0)
        if role == table.role:
            _draw_baselines(axes, table)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    add_legend(figure, panels[0])
    right = " (left) and on source validation (right)" if len(roles) > 1 else ""
    return Picture(
        figure,
        "Accuracy over rounds",
        f"Mean accuracy after each evaluated round on {ROLES[table.role].images} images{right}. "
        "Lines are means; bands are one standard deviation over seeds.",
        f"Line chart of accuracy over rounds of {', '.join(_labels(rows))}.",
    )


def accuracy_over_communication(table: Table, methods: Sequence[str]) -> Picture:
    """Draw mean accuracy against parameters per client and round, with one line per config (at most ``MAX_SERIES``)."""
    figure, (axes,) = new_axes(
        [f"{ROLES[table.role].images} (%)"], "parameters sent and received by a client in a round", methods
    )
    for index, method in enumerate(methods):
        points = []
        for row in table.compared_rows:
            runs = table.runs[row[0]]
            cell = table.cell(row)
            sent = costs(runs)
            if row[1] != UNTRAINED and config_name(runs[0]) == method and sent and cell is not None:
                points.append((sent["upload_parameters"] + sent["download_parameters"], cell))
        # A logarithmic axis has no zero.
        points = sorted(point for point in points if point[0])
        if not points:
            continue
        parameters = [count for count, _ in points]
        style = series_style(index)
        if len(set(parameters)) < len(parameters):  # a line would connect points with equal x
            style["linestyle"] = "none"
        axes.errorbar(
            parameters,
            [cell.mean for _, cell in points],
            [cell.std for _, cell in points],
            **style,
            markersize=4,
            linewidth=1.3,
            elinewidth=1.0,
            capsize=2,
            label=escape_text(method),
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    _draw_baselines(axes, table)
    add_legend(figure, axes)
    return Picture(
        figure,
        "Accuracy and communication",
        f"Mean {ROLES[table.role].images} accuracy after the last round against the parameters that a client sends and "
        f"receives per round. {BARS}.",
        f"Chart of accuracy against communicated parameters of {', '.join(methods)}.",
    )


def domain_bars(table: Table, rows: Sequence[Row]) -> Picture:
    """Draw the accuracy of each domain and the average, with one bar per row (at most ``MAX_SERIES``)."""
    columns = [*table.columns, AVERAGE]
    figure, (axes,) = new_axes([f"{ROLES[table.role].images} (%)"], "", _labels(rows))
    # The bars of a domain fill 80 % of its width; with few methods, bars stay narrow.
    width = min(0.8 / len(rows), 0.25)
    for position, row in enumerate(rows):
        cells = [(index, cell) for index, column in enumerate(columns) if (cell := table.cell(row, column))]
        axes.bar(
            [index + (position + 0.5 - len(rows) / 2) * width for index, _ in cells],
            [cell.mean for _, cell in cells],
            width,
            yerr=[cell.std for _, cell in cells],
            color=series_style(position)["color"],
            hatch=HATCHES[position],
            edgecolor="white",
            linewidth=0.5,
            error_kw={"elinewidth": 1.0, "capsize": 1.5},
            label=escape_text(row[0]),
        )
    names = [*table.columns, table.average_title]
    axes.set_xticks(range(len(names)), [escape_text(name) for name in names])
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    if sum(map(len, names)) > 44:  # characters that fit below a figure in one line
        for text in axes.get_xticklabels():
            text.set(rotation=30, horizontalalignment="right", rotation_mode="anchor")
    add_legend(figure, axes)
    return Picture(
        figure,
        "Accuracy of each domain",
        f"{ROLES[table.role].images.capitalize()} accuracy after the last round. Bars are means; lines on bars are one "
        "standard deviation over seeds.",
        f"Bar chart of accuracy by domain of {', '.join(_labels(rows))}; see the table for the numbers.",
    )


def _labels(rows: Sequence[Row]) -> list[str]:
    return [method for method, _ in rows]


def _draw_parts(
    table: Table, items: Sequence[Any], draw: Callable[[Table, Sequence[Any]], Picture]
) -> Iterator[Picture]:
    if not items:
        return
    num_parts = math.ceil(len(items) / MAX_SERIES)
    size = math.ceil(len(items) / num_parts)
    for number, start in enumerate(range(0, len(items), size), start=1):
        picture = draw(table, items[start : start + size])
        title = picture.title if num_parts == 1 else f"{picture.title} ({number} of {num_parts})"
        texts = map(table.records[0].name_accuracy, (title, picture.caption, picture.alt))
        yield Picture(picture.figure, *texts)


def _draw_baselines(axes: Axes, table: Table) -> None:
    for title, line in BASELINE_LINES.items():
        cell = table.cell((title, UNTRAINED))
        if cell is not None:
            axes.axhline(cell.mean, color="0.3", linestyle=line, linewidth=1.2, label=title)
