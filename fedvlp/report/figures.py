"""Figures of one run: accuracy over rounds, and accuracy against communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedvlp.report.selection import ROLES, is_accuracy

History = Sequence[Mapping[str, Any]]
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")  # Okabe and Ito


def accuracy_figure(history: History, baseline: Mapping[str, float], title: str) -> Figure:
    """Returns accuracy in percent over rounds: validation thin, what tests bold, zero-shot CLIP dotted."""
    figure, axes = _axes("round", title)
    evaluated = [row for row in history if "validation" in row]
    names = [name for name in (evaluated[-1] if evaluated else {}) if "/" in name and is_accuracy(name)]
    for colour, name in zip(_cycle(len(names)), sorted(names), strict=True):
        role, domain = name.split("/")
        axes.plot(
            [row["round"] for row in evaluated],
            [row[name] for row in evaluated],
            color=colour,
            linewidth=1.2 if role == "validation" else 2.4,
            marker={"test": "s", "held_out": "o"}.get(role),
            markersize=4,
            label=f"{domain} ({ROLES[role].replace('-', ' ')})",
        )
        if name in baseline:
            axes.axhline(baseline[name], color=colour, linestyle=":", linewidth=1.2)
    if baseline:
        axes.plot([], [], color="0.4", linestyle=":", label="zero-shot CLIP")
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def communication_figure(history: History, baseline: Mapping[str, float], title: str) -> Figure:
    """Returns accuracy in percent against the bytes that all clients sent and received so far."""
    figure, axes = _axes("communicated so far, all clients, up and down (MB)", title)
    total, points = 0.0, []
    for row in history:
        total += row["total_bytes"] / 1e6
        points.append((total, row))
    for colour, role in {"#0072B2": "validation", "#009E73": "test", "#D55E00": "held_out"}.items():
        chosen = [(megabytes, row[role]) for megabytes, row in points if role in row]
        if chosen:
            label = f"{'source validation' if role == 'validation' else ROLES[role]} mean"
            axes.plot(
                [x for x, _ in chosen], [y for _, y in chosen], color=colour, marker="o", markersize=4, label=label
            )
        if role in baseline:
            axes.axhline(baseline[role], color=colour, linestyle=":", linewidth=1.2)
    axes.legend(fontsize=8, frameon=False)
    return figure


def _axes(horizontal: str, title: str) -> tuple[Figure, Axes]:
    """Returns an empty figure in the house's style; made without pyplot, so nothing global is touched."""
    figure = Figure(figsize=(7.2, 4.0), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(horizontal)
    axes.set_ylabel("accuracy (%)")
    axes.set_title(title, fontsize=8, loc="left")
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=horizontal == "round"))
    return figure, axes


def _cycle(count: int) -> list[str]:
    """Returns as many colours as asked, repeating them."""
    return [COLOURS[i % len(COLOURS)] for i in range(count)]
