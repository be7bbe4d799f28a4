"""Which clients take part in a round, and, for studies, which of them drop out or do only a part of their work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedvlp.core.state import Client
from fedvlp.utils.seeding import derive_seed

# They name the two draws of a round. Five numbers make their seeds, four those of a client, so none is the same.
DROPOUT = 1
STRAGGLERS = 2

# Of its steps that a straggler takes.
SMALLEST_SHARE = 0.1


def sample_cohort(clients: Sequence[Client], size: int | None, seed: int) -> list[Client]:
    """The clients of one round by ascending id: all, or ``size`` drawn without replacement.

    >>> clients = [Client(i, i, 1) for i in range(5)]
    >>> [c.id for c in sample_cohort(clients, 2, seed=3)] == [c.id for c in sample_cohort(clients[::-1], 2, seed=3)]
    True
    """
    ordered = sorted(clients, key=lambda client: client.id)
    if size is None or size >= len(ordered):
        return ordered
    chosen = np.random.default_rng(seed).choice(len(ordered), size, replace=False)
    return [ordered[i] for i in sorted(chosen)]


def present_clients(cohort: Sequence[Client], dropout: float, least: int, seed: int, round: int) -> list[Client]:
    """The clients that do not drop out with this probability, in their order.

    Whatever is drawn, ``least`` of them stay, those with the largest draws. ``round`` is the number of finished rounds.
    """
    if not dropout:
        return list(cohort)
    draws = np.random.default_rng(derive_seed(seed, round, 0, 0, DROPOUT)).random(len(cohort))
    needed = set(np.argsort(-draws, kind="stable")[:least].tolist())
    return [client for place, client in enumerate(cohort) if draws[place] >= dropout or place in needed]


def shares_of_steps(clients: Sequence[Client], stragglers: float, seed: int, round: int) -> dict[int, float]:
    """The share of its steps that each straggler takes, uniform in [0.1, 1), by the client's id.

    As in FedProx (Li et al. 2020, Section 5.2), a fixed share of the clients straggles, others in each round, and how
    far each comes is drawn uniformly.
    """
    count = int(stragglers * len(clients) + 0.5)  # rounded, halves up
    if not count:
        return {}
    generator = np.random.default_rng(derive_seed(seed, round, 0, 0, STRAGGLERS))
    chosen = generator.choice(len(clients), count, replace=False)
    shares = generator.uniform(SMALLEST_SHARE, 1.0, count)
    return {clients[place].id: share for place, share in zip(chosen.tolist(), shares.tolist(), strict=True)}
