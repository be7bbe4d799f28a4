"""Updates as differences, their norms, and Gaussian noise on them: at the server, or at a client that trusts no one."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from fedvlp.core.state import State
from fedvlp.utils.seeding import derive_seed

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


def clip_to_norm(update: State, max_norm: float) -> State:
    """Returns an update in float64 that is no longer than the norm, in its own direction."""
    norm = norm_of(update)
    return {name: move * (max_norm / norm) for name, move in update.items()} if norm > max_norm else update


def update_of(state: State, before: State) -> State:
    """Returns the difference of an upload from ``before``, in float64."""
    return {name: value.double() - before[name].double() for name, value in state.items()}


def norm_of(update: State) -> float:
    """Returns the Euclidean norm over all tensors of an update in float64."""
    return math.sqrt(sum(move.square().sum().item() for move in update.values()))


@dataclass(frozen=True)
class ClientNoise:
    """Local differential privacy of one upload by the Gaussian mechanism.

    The update d, over all tensors of the upload, is sent as d min(1, S / |d|) + N(0, z^2 S^2).

    Args:
        clip_norm: S, the longest update as Euclidean norm, above 0.
        noise_multiplier: z, the noise's standard deviation as a multiple of ``clip_norm``, at least 0.
        seed: of noise that repeats, mixed with that of the client; None takes the system's secure randomness.

    >>> import torch
    >>> ClientNoise(1.0, 0.0, seed=0).protected({"p": torch.tensor([3.0, 4.0])}, {"p": torch.zeros(2)}, 5)
    {'p': tensor([0.6000, 0.8000])}
    """

    clip_norm: float
    noise_multiplier: float
    seed: int | None

    def protected(self, upload: State, before: State, client_seed: int) -> State:
        """Returns what is sent in place of an upload.

        Args:
            upload: what the client would send.
            before: what it went on from, by the same names; there may be others.
            client_seed: of the client in this phase and round.
        """
        draw = system_normals() if self.seed is None else seeded_normals(derive_seed(self.seed, client_seed))
        update = clip_to_norm(update_of(upload, before), self.clip_norm)
        noised = with_noise(update, self.noise_multiplier * self.clip_norm, draw)
        return {name: (before[name].double() + move).to(upload[name].dtype) for name, move in noised.items()}
