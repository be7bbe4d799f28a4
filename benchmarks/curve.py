"""Time and memory along one axis, and their slopes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """Measurements along one axis.

    Attributes:
        axis: The quantity that grows.
        sizes: Values of the quantity.
        seconds: Median at each size.
        megabytes: Peak memory at each size.
        floor: Share of the floor at the largest size; None where there is none.
    """

    axis: str
    sizes: Sequence[int]
    seconds: Sequence[float]
    megabytes: Sequence[float]
    floor: float | None = None

    @property
    def time_slope(self) -> float:
        """Slope of the time."""
        return slope(self.sizes, self.seconds)

    @property
    def memory_slope(self) -> float | None:
        """Slope of the memory; None if memory hardly grows."""
        grows = self.megabytes[-1] - self.megabytes[0] > 5
        return slope(self.sizes, [max(megabytes, 1.0) for megabytes in self.megabytes]) if grows else None


def slope(sizes: Sequence[float], values: Sequence[float], last: int = 3) -> float:
    """Compute the slope of the line through the logarithms of the last points.

    >>> slope([1, 10, 100], [3, 30, 300])
    1.0
    """
    x = [math.log(size) for size in sizes][-last:]
    y = [math.log(value) for value in values][-last:]
    return statistics.linear_regression(x, y).slope
