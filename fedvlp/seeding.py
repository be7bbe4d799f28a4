"""Randomness that depends on where it is used, and on nothing that ran before."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from fedvlp.state import Client


def seed_of(*where: int) -> int:
    """Returns a seed in [0, 2^63) for a place such as (seed, round, phase, client).

    >>> seed_of(0, 1, 2) == seed_of(0, 1, 2), seed_of(0, 1, 2) == seed_of(0, 2, 1)
    (True, False)
    """
    return int(np.random.SeedSequence(where).generate_state(1, np.uint64)[0] >> 1)


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restores all global generators after the block, in which they may be seeded as often as is needed."""
    python, numpy, states = random.getstate(), np.random.get_state(), [each.get_state() for each in _generators()]
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for generator, state in zip(_generators(), states, strict=False):
            generator.set_state(state)


def seed_generators(seed: int) -> None:
    """Seeds all global generators: PyTorch's on every device in use, NumPy's and Python's."""
    for generator in _generators():
        generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _generators() -> list[torch.Generator]:
    """Returns PyTorch's global generators, those of CUDA devices if they are in use."""
    cuda = list(torch.cuda.default_generators) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.default_generator, *cuda]


def sample_cohort(clients: Sequence[Client], size: int | None, seed: int) -> list[Client]:
    """Returns the clients of one round by ascending id: all, or ``size`` drawn without replacement.

    >>> clients = [Client(i, i, 1) for i in range(5)]
    >>> [c.id for c in sample_cohort(clients, 2, seed=3)] == [c.id for c in sample_cohort(clients[::-1], 2, seed=3)]
    True
    """
    ordered = sorted(clients, key=lambda client: client.id)
    if size is None or size >= len(ordered):
        return ordered
    chosen = np.random.default_rng(seed).choice(len(ordered), size, replace=False)
    return [ordered[i] for i in sorted(chosen)]
