"""The limits of this machine, measured in the same process and with the same threads as the benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from benchmarks.measure import clock

SIZES = {"cpu": 1536, "cuda": 8192}
"""Sizes of square matrices that keep all units of a device busy."""


def matrix_rate(
    size: int | None = None, repeats: int = 5, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> float:
    """Measure the operations per second of a large matrix product, with two for each multiply-add.

    Args:
        size: Rows and columns of both factors; None for the device's of `SIZES`.
        repeats: Number of measurements; the median counts.
        dtype: Type of both factors.
        device: The device, ``cpu`` or ``cuda``.
    """
    size = size or SIZES[device]
    left = torch.randn(size, size, dtype=dtype, device=device)
    right = torch.randn(size, size, dtype=dtype, device=device)
    result = torch.empty(size, size, dtype=dtype, device=device)
    return 2 * size**3 / _median_seconds(lambda: torch.mm(left, right, out=result), repeats, device)


def bandwidth(megabytes: int = 256, repeats: int = 5) -> float:
    """Measure the bytes per second of a copy between two large tensors, counting reads and writes.

    Args:
        megabytes: Size of one tensor.
        repeats: Number of measurements; the median counts.
    """
    source = torch.ones(megabytes * 2**18)
    target = torch.empty_like(source)
    return 2 * megabytes * 2**20 / _median_seconds(lambda: target.copy_(source), repeats)


def _median_seconds(function: Callable[[], object], repeats: int, device: str = "cpu") -> float:
    """Measure the median duration, after one warm-up."""
    function()
    seconds = []
    for _ in range(repeats):
        started = clock(device)
        function()
        seconds.append(clock(device) - started)
    return statistics.median(seconds)
