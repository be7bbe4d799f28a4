"""The fixed-point weighted mean of a secure sum, with the same sum in any order of clients.

Each value times its client's weight is rounded to a multiple of 2^-32 and stored as an integer modulo 2^64; the weight
is appended. Sums of up to ``MOST_CLIENTS`` do not overflow, because 63 x 32 x 2^20 x 2^32 is below 2^63.
"""

import numpy as np
import torch
from jaxtyping import UInt64

from fedvlp.core.state import NOT_FINITE, State, is_finite

Numbers = UInt64[np.ndarray, "N"]
"""A client's values times its weight, sorted by tensor name, followed by the weight."""
SCALE = 2.0**32
LARGEST = 32.0
MOST_WEIGHT = 2**20
MOST_CLIENTS = 63


def fixed_point_error(state: State, weight: float) -> str:
    """Explain why an upload can't be encoded without clipping; an empty string if it can."""
    if not is_finite(state):
        return NOT_FINITE
    if any(value.abs().max() > LARGEST for value in state.values() if value.numel()):
        # Without the value, because a site sends the reason to the server.
        return f"uploads a value beyond {LARGEST:g}, the limit of a secure sum"
    if weight not in range(1, MOST_WEIGHT + 1):
        return f"has the weight {weight}, but a secure sum needs integers from 1 to {MOST_WEIGHT:,}"
    return ""


def encode(state: State, weight: int) -> Numbers:
    """Encode an upload that has no ``fixed_point_error``.

    >>> encode({"prompt": torch.tensor([0.5])}, 3).tolist() == [3 * 2**31, 3]
    True
    """
    values = torch.cat([state[name].double().flatten() for name in sorted(state)])
    # A float32 times a weight is exact in float64, so each value is rounded once.
    scaled = torch.round(values * (weight * SCALE)).long().numpy()
    return np.append(scaled, np.int64(weight)).view(np.uint64)


def decode(total: Numbers, template: State) -> State:
    """Decode a sum to the weighted mean, with the names, shapes and dtypes of ``template``."""
    signed = torch.from_numpy(total.view(np.int64).copy())
    mean = signed[:-1].double() / (signed[-1].item() * SCALE)
    parts = torch.split(mean, [template[name].numel() for name in sorted(template)])
    named = zip(sorted(template), parts, strict=True)
    return {name: part.reshape(template[name].shape).to(template[name].dtype) for name, part in named}
