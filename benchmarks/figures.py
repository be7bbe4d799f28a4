"""Plots of time and memory against sizes and over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.curve import Curve


def plot(curves: Sequence[Curve], path: Path) -> None:
    """Plot two panels with logarithmic axes, with each curve as multiples of its first size and value.

    Args:
        curves: One curve per axis.
        path: PNG file to write.
    """
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    time, memory = figure.subplots(1, 2)
    for curve, marker in zip(curves, "osD^vPX", strict=False):
        ratios = [size / curve.sizes[0] for size in curve.sizes]
        label = f"{curve.axis}: {curve.time_slope:.2f}"
        time.plot(ratios, [value / curve.seconds[0] for value in curve.seconds], label=label, marker=marker)
        label = curve.axis if curve.memory_slope is None else f"{curve.axis}: {curve.memory_slope:.2f}"
        memory.plot(ratios, [max(value, 1) for value in curve.megabytes], label=label, marker=marker)
    most = max(curve.sizes[-1] / curve.sizes[0] for curve in curves)
    time.plot([1, most], [1, most], color="grey", linestyle=":", label="linear")
    _finish(time, "time, as multiples of that of the smallest size")
    _finish(memory, "peak memory above the start, MB")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def plot_over_rounds(runs: Mapping[str, Sequence[float]], path: Path) -> None:
    """Plot one panel of memory after each round.

    Args:
        runs: Megabytes by run, the first before round 1.
        path: PNG file to write.
    """
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    panel = figure.subplots()
    for (label, megabytes), marker in zip(runs.items(), "osD^vPX", strict=False):
        panel.plot(range(len(megabytes)), megabytes, label=label, marker=marker, markersize=3)
    panel.set(xlabel="finished rounds", ylabel="resident memory, MB", ylim=(0, None))
    panel.legend()
    panel.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _finish(panel: Any, label: str) -> None:
    panel.set(xscale="log", yscale="log", xlabel="multiples of the smallest size", ylabel=label)
    panel.legend(title="slope of the last three sizes")
    panel.grid(which="both", alpha=0.3)
