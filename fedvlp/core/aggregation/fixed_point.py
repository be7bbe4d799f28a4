"""A weighted mean in fixed point, whose sum is the same in any order: what a secure sum adds up.

Each number times its client's weight becomes a multiple of 2^-32, a whole number modulo 2^64; the weight is one more.
The sum of ``MOST_CLIENTS`` stays below 2^63 in size, since 63 x 32 x 2^20 x 2^32 does, so nothing wraps around in it.
"""

import numpy as np
import torch
from jaxtyping import UInt64

from fedvlp.core.state import NOT_FINITE, State, is_finite

Numbers = UInt64[np.ndarray, "N"]
"""A client's numbers times its weight, in the order of their tensors' names, and then its weight."""
SCALE = 2.0**32
LARGEST = 32.0
MOST_WEIGHT = 2**20
MOST_CLIENTS = 63


def fixed_point_error(state: State, weight: float) -> str:
    """Why an upload has no such numbers, none of which is cut off; an empty string if it has."""
    if not is_finite(state):
        return NOT_FINITE
    if any(value.abs().max() > LARGEST for value in state.values() if value.numel()):
        # Not which, since a site sends the reason to the server.
        return f"uploads a number beyond the {LARGEST:g} that a secure sum has"
    if weight not in range(1, MOST_WEIGHT + 1):
        return f"weighs {weight}, and a secure sum has whole numbers from 1 to {MOST_WEIGHT:,}"
    return ""


def encode(state: State, weight: int) -> Numbers:
    """The fixed-point numbers of an upload without a ``fixed_point_error``.

    >>> encode({"prompt": torch.tensor([0.5])}, 3).tolist() == [3 * 2**31, 3]
    True
    """
    values = torch.cat([state[name].double().flatten() for name in sorted(state)])
    # A float32 times a weight is exact in float64, so each number is rounded once.
    scaled = torch.round(values * (weight * SCALE)).long().numpy()
    return np.append(scaled, np.int64(weight)).view(np.uint64)


def decode(total: Numbers, like: State) -> State:
    """The weighted mean in a sum of such numbers, with names, shapes and number formats as ``like`` has them."""
    signed = torch.from_numpy(total.view(np.int64).copy())
    mean = signed[:-1].double() / (signed[-1].item() * SCALE)
    parts = torch.split(mean, [like[name].numel() for name in sorted(like)])
    named = zip(sorted(like), parts, strict=True)
    return {name: part.reshape(like[name].shape).to(like[name].dtype) for name, part in named}
