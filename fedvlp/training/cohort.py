"""Which clients take part in a round, and which process trains which of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from fedvlp.core.state import Client


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


def balance_clients(clients: Sequence[Client], steps: Callable[[Client], int], processes: int) -> list[list[Client]]:
    """Returns the clients of each process by ascending id, so that all are done at about the same time.

    The longest come first, each goes to the process that has least to do (Graham 1969): no process has more than 4/3 of
    what the best division would give it.

    >>> clients = [Client(i, 0, size) for i, size in enumerate([3, 1, 5, 2, 1])]
    >>> [[client.id for client in share] for share in balance_clients(clients, lambda client: client.num_examples, 2)]
    [[1, 2], [0, 3, 4]]
    """
    if processes == 1:
        return [list(clients)]
    shares: list[list[Client]] = [[] for _ in range(processes)]
    loads = [(0, process) for process in range(processes)]
    for client in sorted(clients, key=lambda client: (-steps(client), client.id)):
        load, process = heapq.heappop(loads)
        shares[process].append(client)
        heapq.heappush(loads, (load + steps(client), process))
    return [sorted(share, key=lambda client: client.id) for share in shares]
