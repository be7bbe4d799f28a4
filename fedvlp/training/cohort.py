"""Sampling of the clients of a round and, for studies, of clients that drop out, straggle or attack."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from lightning import Fabric

from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import FederatedData, TrainingData
from fedvlp.core.state import Client, State
from fedvlp.training.add_ons.base import AddOn
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed

# Distinguish the two draws of a round. Their seeds derive from five numbers, clients' seeds from four.
DROPOUT = 1
STRAGGLERS = 2
# Separates the draw of hostile clients from all others of the same seed.
HOSTILE = 0x486F7374

# Smallest share of its steps that a straggler takes.
SMALLEST_SHARE = 0.1


def sample_cohort(clients: Sequence[Client], size: int | None, seed: int) -> list[Client]:
    """Sample ``size`` clients without replacement, or take all, by ascending id.

    >>> clients = [Client(i, i, 1) for i in range(5)]
    >>> [c.id for c in sample_cohort(clients, 2, seed=3)] == [c.id for c in sample_cohort(clients[::-1], 2, seed=3)]
    True
    """
    ordered = sorted(clients, key=lambda client: client.id)
    if size is None or size >= len(ordered):
        return ordered
    chosen = np.random.default_rng(seed).choice(len(ordered), size, replace=False)
    return [ordered[i] for i in sorted(chosen)]


def present_clients(cohort: Sequence[Client], dropout: float, minimum: int, seed: int, round: int) -> list[Client]:
    """Drop clients with this probability, but always keep the ``minimum`` clients with the largest draws, in order."""
    draws = np.random.default_rng(derive_seed(seed, round, 0, 0, DROPOUT)).random(len(cohort))
    needed = set(np.argsort(-draws, kind="stable")[:minimum].tolist())
    return [client for index, client in enumerate(cohort) if draws[index] >= dropout or index in needed]


def draw_step_shares(clients: Sequence[Client], stragglers: float, seed: int, round: int) -> dict[int, float]:
    """Draw the share of its steps that each straggler takes, uniform in [0.1, 1), by client id.

    A fixed share of the clients straggles in each round (FedProx, Li et al. 2020, Section 5.2).
    """
    count = int(stragglers * len(clients) + 0.5)  # rounded, halves up
    if not count:
        return {}
    generator = np.random.default_rng(derive_seed(seed, round, 0, 0, STRAGGLERS))
    chosen = generator.choice(len(clients), count, replace=False)
    shares = generator.uniform(SMALLEST_SHARE, 1.0, count)
    return {clients[index].id: share for index, share in zip(chosen.tolist(), shares.tolist(), strict=True)}


class Attack:
    """An attack by hostile clients. Subclasses are frozen dataclasses that change data, uploads or both.

    Random draws of a hostile client depend only on seed, round, phase and client.

    Attributes:
        clients: Number of hostile clients, or their share of all clients if below 1, rounded down.
        seed: Seed of the choice of hostile clients. A larger number of them includes the smaller choice.
        needs_classes: Whether it needs images with one class each.
    """

    clients: float
    seed: int
    needs_classes = False

    def __post_init__(self) -> None:
        if self.clients < 0 or (self.clients >= 1 and self.clients != int(self.clients)) or self.seed < 0:
            raise UserError(
                f"{type(self).__name__} needs a whole number of clients, or a share in [0, 1), and a seed of at least "
                f"0; got {self.clients} and {self.seed}."
            )

    def hostile(self, clients: Sequence[Client]) -> frozenset[int]:
        """Choose the ids of the hostile clients; raise UserError if there are too few clients."""
        # As an exact fraction, because 0.29 * 100 is less than 29 in floating point.
        share = Fraction(str(self.clients))
        count = math.floor(share * len(clients)) if share < 1 else int(share)
        if count > len(clients):
            raise UserError(f"Expected at most {len(clients)} hostile clients, the number of clients; got {count}.")
        ids = sorted(client.id for client in clients)
        # Each client has its own draw, so that a larger number of hostile clients includes the smaller choice.
        drawn = {client: derive_seed(HOSTILE, self.seed, client) for client in ids}
        return frozenset(sorted(ids, key=drawn.__getitem__)[:count])

    def training_data(self, data: FederatedData, module: FederatedModule) -> TrainingData:
        """Make the training data of all clients from ``data``, which are bound to the method. Do not change it."""
        return data

    def add_on(self, clients: Sequence[Client]) -> AddOn | None:
        """Make the add-on that changes the uploads of hostile clients; None if the attack changes no uploads."""
        return None

    def measure(
        self,
        module: FederatedModule,
        data: TrainingData,
        fabric: Fabric,
        deployed: State,
        personal: Mapping[int, State],
    ) -> dict[str, float]:
        """Measure the attack's success in each evaluated round; ``data`` is the result of ``training_data``."""
        return {}
