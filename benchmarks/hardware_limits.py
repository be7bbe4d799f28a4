"""The limits of this machine, measured in the same process and with the same threads as what stands beside them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def matrix_rate(size: int = 1536, repeats: int = 5, dtype: torch.dtype = torch.float32) -> float:
    """Returns the operations a second of a large matrix product, two for each multiply-add.

    Args:
        size: Rows and columns of both factors.
        repeats: How often it is measured; the median counts.
        dtype: Of both factors.
    """
    left = torch.randn(size, size, dtype=dtype)
    right = torch.randn(size, size, dtype=dtype)
    result = torch.empty(size, size, dtype=dtype)
    return 2 * size**3 / _median_seconds(lambda: torch.mm(left, right, out=result), repeats)


def bandwidth(megabytes: int = 256, repeats: int = 5) -> float:
    """Returns the bytes a second of a copy between two large tensors, read and written bytes together.

    Args:
        megabytes: Size of one tensor.
        repeats: How often it is measured; the median counts.
    """
    source = torch.ones(megabytes * 2**18)
    target = torch.empty_like(source)
    return 2 * megabytes * 2**20 / _median_seconds(lambda: target.copy_(source), repeats)


def _median_seconds(function: Callable[[], object], repeats: int) -> float:
    """Returns the median of the repeats, after one that is not measured."""
    function()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
