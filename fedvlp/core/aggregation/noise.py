"""Gaussian noise on states: from a seed, so that it repeats, or from the system's secure randomness."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from fedvlp.core.state import State

Draw = Callable[[int], Tensor]
"""Returns so many independent standard normal numbers in float64, others at each call."""


def seeded_normals(seed: int) -> Draw:
    """Returns a draw that repeats with its seed: for studies, since who knows the seed can take the noise off.

    >>> torch.equal(seeded_normals(3)(4), seeded_normals(3)(4)), torch.equal(seeded_normals(3)(4), seeded_normals(4)(4))
    (True, False)
    """
    # Raw words are the same in every version of NumPy; its own normal numbers need not be.
    generator = np.random.PCG64(seed)
    return lambda count: _normals(np.asarray(generator.random_raw(count), np.uint64))


def system_normals() -> Draw:
    """Returns a draw from the operating system's cryptographic generator, which never repeats."""
    return lambda count: _normals(np.frombuffer(os.urandom(8 * count), np.uint64))


def with_noise(state: State, std: float, draw: Draw) -> State:
    """Returns a state with independent Gaussian noise on each number, in float64.

    The server adds it to a sum of clipped updates; a client that trusts no server can add its share to its own.

    Args:
        state: what is made noisy.
        std: standard deviation of the noise, at least 0; with 0 nothing is drawn.
        draw: where the noise comes from.
    """
    if std == 0:
        return {name: value.double() for name, value in state.items()}
    return {name: value.double() + std * draw(value.numel()).reshape(value.shape) for name, value in state.items()}


def _normals(words: npt.NDArray[np.uint64]) -> Float[Tensor, "count"]:
    """Returns one standard normal number for each random word, by the inverse of the normal distribution."""
    # 52 bits and a half step are exact in float64 and never reach 0 or 1, where the inverse is infinite.
    shares = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    normals: Tensor = torch.special.ndtri(torch.from_numpy(shares))
    return normals
