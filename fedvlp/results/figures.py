"""Figures of one run: accuracy over rounds, and accuracy against communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedvlp.core.roles import COMPUTED, OF_CLIENTS, ROLES, role_title
from fedvlp.results.selection import is_accuracy
from fedvlp.results.style import SMALL_FONT_SIZE, add_legend, escape_text, new_axes, series_style

ALWAYS_SHOWN = ("validation", "test", "held_out")
History = Sequence[Mapping[str, Any]]
"""A row of metrics for each round."""


def accuracy_figure(history: History, baseline: Mapping[str, float], title: str) -> Figure:
    """Returns accuracy in percent over rounds: validation thin, what tests bold, zero-shot CLIP dotted."""
    evaluated = [row for row in history if "validation" in row]
    labels = _domain_labels(evaluated)
    figure, (axes,) = new_axes(["accuracy (%)"], "round", [*labels.values(), "zero-shot CLIP"])
    for index, (name, label) in enumerate(labels.items()):
        style = series_style(index)
        axes.plot(
            [row["round"] for row in evaluated],
            [row[name] for row in evaluated],
            color=style.colour,
            linestyle=style.line,
            linewidth=1.0 if name.startswith("validation") else 2.2,
            marker=style.marker,
            markersize=3.5,
            label=escape_text(label),
        )
        if name in baseline:
            axes.axhline(baseline[name], color=style.colour, linestyle=":", linewidth=1.0)
    if baseline:
        axes.plot([], [], color="0.4", linestyle=":", label="zero-shot CLIP")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _add_title_and_legend(figure, title)


def communication_figure(history: History, baseline: Mapping[str, float], title: str) -> Figure:
    """Returns accuracy in percent against the bytes that all clients sent and received so far."""
    roles = [*ROLES, *(name for name in COMPUTED if "harmonic" in name)]
    labels = [*_shown(roles, history), "zero-shot CLIP"]
    figure, (axes,) = new_axes(["accuracy (%)"], "communicated so far, all clients, up and down (MB)", labels)
    megabytes = list(accumulate(row["total_bytes"] / 1e6 for row in history))
    for index, role in enumerate(roles):
        style = series_style(index)
        measured = [place for place, row in enumerate(history) if role in row]
        if measured:
            axes.plot(
                [megabytes[place] for place in measured],
                [history[place][role] for place in measured],
                color=style.colour,
                linestyle=style.line,
                marker=style.marker,
                markersize=3.5,
                label=f"{role_title(role)} mean",
            )
        if role in baseline:
            axes.axhline(baseline[role], color=style.colour, linestyle=":", linewidth=1.0)
    if any(role in baseline for role in roles):
        axes.plot([], [], color="0.4", linestyle=":", label="zero-shot CLIP")
    return _add_title_and_legend(figure, title)


def _shown(roles: Sequence[str], history: History) -> list[str]:
    """Returns what the legend keeps room for: the roles of every run, and others that this one has."""
    measured = set(chain.from_iterable(history))
    return [role for role in roles if role in ALWAYS_SHOWN or role in measured]


def _domain_labels(evaluated: History) -> dict[str, str]:
    """Returns what the legend calls each domain's accuracy, of those that the last evaluated round has."""
    if not evaluated:
        return {}
    labels = {}
    for name in sorted(evaluated[-1]):
        if "/" in name and is_accuracy(name) and not name.startswith(tuple(f"{role}/" for role in OF_CLIENTS)):
            role, domain = name.split("/", 1)
            labels[name] = f"{domain} ({ROLES[role].replace('-', ' ')})"
    return labels


def _add_title_and_legend(figure: Figure, title: str) -> Figure:
    (axes,) = figure.axes
    escaped = "\n".join(map(escape_text, title.splitlines()))
    figure.suptitle(escaped, fontsize=SMALL_FONT_SIZE, x=0.02, horizontalalignment="left")
    if axes.get_legend_handles_labels()[1]:
        add_legend(figure, axes)
    return figure
