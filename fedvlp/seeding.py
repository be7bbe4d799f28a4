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
def seeded(seed: int) -> Iterator[None]:
    """Seeds all global generators inside the block, and restores them after it."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


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
