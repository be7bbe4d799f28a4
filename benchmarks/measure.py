"""Seconds and peak memory of a function, and a table of them."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Measurement:
    """What one side of a comparison took.

    Args:
        seconds: Wall-clock seconds of each repeat.
        megabytes: Peak resident memory above that before the first repeat.
    """

    seconds: list[float]
    megabytes: float

    @property
    def median(self) -> float:
        """The median of the repeats, in seconds."""
        return statistics.median(self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values."""
        return asdict(self)


def measure(function: Callable[[], object], repeats: int, warm_up: bool) -> Measurement:
    """Returns the wall-clock seconds of each repeat and the peak memory of them all.

    The peak is the operating system's high-water mark of the process, set back before the first repeat where Linux lets
    us, so call this once in a process.

    Args:
        function: What to measure.
        repeats: How often.
        warm_up: Whether to run it once before, unmeasured.
    """
    before = _resident_megabytes()
    _reset_peak()
    if warm_up:
        function()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - started)
    return Measurement(seconds, max(_peak_megabytes() - before, 0.0))


def describe_machine() -> str:
    """Returns processor, threads and versions in a line."""
    processor = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        names = [line for line in information.read_text().splitlines() if line.startswith("model name")]
        processor = names[0].partition(":")[2].strip() if names else processor
    load = os.getloadavg()[0]
    return (
        f"{processor}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, load {load:.1f} at the start; "
        f"Python {platform.python_version()}, torch {torch.__version__}; {time.strftime('%Y-%m-%d')}"
    )


def _resident_megabytes() -> float:
    """Returns the resident memory of this process."""
    status = Path("/proc/self/statm")
    if status.is_file():
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return _peak_megabytes()


def _reset_peak() -> None:
    """Set the high-water mark back to the present memory, where the system can."""
    marks = Path("/proc/self/clear_refs")
    if marks.exists():
        marks.write_text("5")


def _peak_megabytes() -> float:
    """Returns the high-water mark of this process's resident memory."""
    status = Path("/proc/self/status")
    if status.is_file():
        marks = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(marks[0].split()[1]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
