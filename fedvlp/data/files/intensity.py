"""Intensities of greyscale images with more than 8 bits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def percentile_range(values: NDArray[Any]) -> tuple[float, float]:
    """Compute the 0.5th and the 99.5th percentile of an image's values."""
    low, high = np.percentile(values, [0.5, 99.5])
    return float(low), float(high)


def scale_to_bytes(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """Map values from ``low`` to ``high`` to 0 to 255; values outside are clipped.

    >>> scale_to_bytes(np.array([-5, 0, 16, 4095]), 0, 4096).tolist()
    [0, 0, 1, 255]
    """
    steps = np.floor((values.astype(np.float64) - low) * (256 / max(high - low, 1e-12)))
    return np.asarray(steps.clip(0, 255), np.uint8)
