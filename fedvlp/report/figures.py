"""Figures of one run: accuracy over rounds, and accuracy against communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedvlp.core.roles import ROLES
from fedvlp.report.style import SMALL, add_legend, look, new_axes, written
from fedvlp.results.selection import is_accuracy

History = Sequence[Mapping[str, Any]]


def accuracy_figure(history: History, baseline: Mapping[str, float], title: str) -> Figure:
    """Returns accuracy in percent over rounds: validation thin, what tests bold, zero-shot CLIP dotted."""
    evaluated = [row for row in history if "validation" in row]
    names = sorted(name for name in (evaluated[-1] if evaluated else {}) if "/" in name and is_accuracy(name))
    labels = {name: f"{name.split('/', 1)[1]} ({ROLES[name.split('/')[0]].replace('-', ' ')})" for name in names}
    figure, (axes,) = new_axes(["accuracy (%)"], "round", [*labels.values(), "zero-shot CLIP"])
    for index, name in enumerate(names):
        style = look(index)
        axes.plot(
            [row["round"] for row in evaluated],
            [row[name] for row in evaluated],
            color=style.colour,
            linestyle=style.line,
            linewidth=1.0 if name.startswith("validation") else 2.2,
            marker=style.marker,
            markersize=3.5,
            label=written(labels[name]),
        )
        if name in baseline:
            axes.axhline(baseline[name], color=style.colour, linestyle=":", linewidth=1.0)
    if baseline:
        axes.plot([], [], color="0.4", linestyle=":", label="zero-shot CLIP")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _finished(figure, title)


def communication_figure(history: History, baseline: Mapping[str, float], title: str) -> Figure:
    """Returns accuracy in percent against the bytes that all clients sent and received so far."""
    figure, (axes,) = new_axes(["accuracy (%)"], "communicated so far, all clients, up and down (MB)", [*ROLES])
    total, points = 0.0, []
    for row in history:
        total += row["total_bytes"] / 1e6
        points.append((total, row))
    for index, role in enumerate(ROLES):
        style, chosen = look(index), [(megabytes, row[role]) for megabytes, row in points if role in row]
        if chosen:
            axes.plot(
                *zip(*chosen, strict=True),
                color=style.colour,
                linestyle=style.line,
                marker=style.marker,
                markersize=3.5,
                label=f"{'source validation' if role == 'validation' else ROLES[role]} mean",
            )
        if role in baseline:
            axes.axhline(baseline[role], color=style.colour, linestyle=":", linewidth=1.0)
    return _finished(figure, title)


def _finished(figure: Figure, title: str) -> Figure:
    """Returns a figure of one panel with its title and legend."""
    (axes,) = figure.axes
    figure.suptitle("\n".join(map(written, title.splitlines())), fontsize=SMALL, x=0.02, horizontalalignment="left")
    if axes.get_legend_handles_labels()[1]:
        add_legend(figure, axes)
    return figure
