"""A weighted mean in fixed point, whose sum is the same in any order: what a secure sum adds up.

Each number times its client's weight becomes a multiple of 2^-32, a whole number modulo 2^64; the weight is one more.
The sum of ``MOST_CLIENTS`` stays below 2^63 in size, since 63 x 32 x 2^20 x 2^32 does, so nothing wraps around in it.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    """Why an upload has no such numbers, none of which is cut off; an empty string if it has.

    >>> fixed_point_error({"prompt": torch.tensor([-33.0])}, 1)
    'uploads a number beyond the 32 that a secure sum has'
    """
    if not is_finite(state):
        return NOT_FINITE
    largest = max((value.abs().max().item() for value in state.values() if value.numel()), default=0)
    if largest > LARGEST:
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
    """The weighted mean in a sum of such numbers, with names, shapes and number formats as ``like`` has them.

    >>> total = encode({"p": torch.tensor([0.0])}, 2) + encode({"p": torch.tensor([3.0])}, 1)
    >>> decode(total, {"p": torch.zeros(1)})
    {'p': tensor([1.])}
    """
    signed = torch.from_numpy(total.view(np.int64).copy())
    mean = signed[:-1].double() / (signed[-1].item() * SCALE)
    names = sorted(like)
    parts = torch.split(mean, [like[name].numel() for name in names])
    return {name: part.reshape(like[name].shape).to(like[name].dtype) for name, part in zip(names, parts, strict=True)}


def fixed_point_mean(states: Sequence[State], weights: Sequence[int]) -> State:
    """The weighted mean of at least one upload, none of which has a ``fixed_point_error``."""
    total = sum((encode(state, weight) for state, weight in zip(states, weights, strict=True)), start=np.uint64(0))
    return decode(np.asarray(total), states[0])
