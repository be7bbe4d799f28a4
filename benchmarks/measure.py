"""Duration and peak memory of a function, and a description of the machine."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lightning
import open_clip
import torch


@dataclass(frozen=True)
class Measurement:
    """Result of one side of a comparison.

    Args:
        seconds: Wall-clock seconds of each repeat.
        megabytes: Peak resident memory in addition to the memory before the first repeat.
    """

    seconds: list[float]
    megabytes: float

    @property
    def median(self) -> float:
        """Median over the repeats, in seconds."""
        return statistics.median(self.seconds)


SHARES = {"cpu": 1.0, "cuda": 0.2}
"""Share of a measurement's time that a device needs, since its steps take less."""


def measure_for(
    function: Callable[[], object],
    seconds: float,
    least: int = 1,
    most: int = 15,
    warm_up: bool = False,
    device: str = "cpu",
) -> Measurement:
    """Measure durations, repeated for a given time, and the peak memory of all repeats.

    The first run warms up, unless it takes so long that it has to count. The peak is the operating system's high-water
    mark of the process, which only Linux can reset before the first repeat. Elsewhere, call this once in a process.

    Args:
        function: The measured function.
        seconds: About how long to go on.
        least: Minimum number of repeats.
        most: Maximum number of repeats.
        warm_up: Whether the first run never counts, because it includes one-time work.
        device: The device, ``cpu`` or ``cuda``, whose memory is measured.
    """
    seconds *= SHARES[device]
    before = resident_megabytes(device)
    reset_peak(device)
    first = _timed(function, device)
    took = [first] if first > seconds / 3 and not warm_up else []
    while len(took) < least or (len(took) < most and sum(took) + first < seconds):
        took.append(_timed(function, device))
    return Measurement(took, max(peak_megabytes(device) - before, 0.0))


def _timed(function: Callable[[], object], device: str = "cpu") -> float:
    started = clock(device)
    function()
    return clock(device) - started


def clock(device: str) -> float:
    """Read the time in seconds, after a device has finished all its work."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def describe_machine(device: str = "cpu") -> str:
    """Describe processor, threads and versions in one line, and the GPU if that is the device."""
    processor = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        names = [line for line in information.read_text().splitlines() if line.startswith("model name")]
        processor = names[0].partition(":")[2].strip() if names else processor
    load = os.getloadavg()[0]
    gpu = ""
    if device == "cuda":
        found = torch.cuda.get_device_properties(torch.cuda.current_device())
        arithmetic = f"float32 products of {torch.get_float32_matmul_precision()} precision"
        gpu = f"{found.name}, {found.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}, {arithmetic}; "
    return (
        f"{gpu}{processor}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, load {load:.1f} at the start; "
        f"Python {platform.python_version()}, torch {torch.__version__}, lightning {lightning.__version__}, "
        f"open_clip {open_clip.__version__}; {time.strftime('%Y-%m-%d')}"
    )


def resident_megabytes(device: str = "cpu") -> float:
    """Measure the resident memory of this process, or of its tensors on a GPU."""
    if device == "cuda":
        return torch.cuda.memory_allocated() / 2**20
    status = Path("/proc/self/statm")
    if status.is_file():
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return peak_megabytes()


def reset_peak(device: str = "cpu") -> None:
    """Reset the high-water mark to the present memory, if the system allows it."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    marks = Path("/proc/self/clear_refs")
    if marks.exists():
        marks.write_text("5")


def peak_megabytes(device: str = "cpu") -> float:
    """Measure the high-water mark of this process's resident memory, or of its tensors on a GPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")
    if status.is_file():
        marks = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(marks[0].split()[1]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
