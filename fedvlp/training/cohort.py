"""Which clients take part in a round, and, for studies, which of them drop out, straggle or attack."""

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

# They name the two draws of a round. Five numbers make their seeds, four those of a client, so none is the same.
DROPOUT = 1
STRAGGLERS = 2
# Marks the draw of hostile clients among all that depends on a seed.
HOSTILE = 0x486F7374

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
    """Leave out clients with this probability, but keep ``least``, those with the largest draws, in their order."""
    draws = np.random.default_rng(derive_seed(seed, round, 0, 0, DROPOUT)).random(len(cohort))
    needed = set(np.argsort(-draws, kind="stable")[:least].tolist())
    return [client for place, client in enumerate(cohort) if draws[place] >= dropout or place in needed]


def shares_of_steps(clients: Sequence[Client], stragglers: float, seed: int, round: int) -> dict[int, float]:
    """Draw the share of its steps that each straggler takes, uniform in [0.1, 1), by the client's id.

    A fixed share of the clients straggles in each round (FedProx, Li et al. 2020, Section 5.2).
    """
    count = int(stragglers * len(clients) + 0.5)  # rounded, halves up
    if not count:
        return {}
    generator = np.random.default_rng(derive_seed(seed, round, 0, 0, STRAGGLERS))
    chosen = generator.choice(len(clients), count, replace=False)
    shares = generator.uniform(SMALLEST_SHARE, 1.0, count)
    return {clients[place].id: share for place, share in zip(chosen.tolist(), shares.tolist(), strict=True)}


class Attack:
    """Hostile clients among honest ones; a subclass is a frozen dataclass that changes data, uploads or both.

    What a hostile client draws depends on seed, round, phase and client alone.

    Attributes:
        clients: how many are hostile: a number, or a share below 1 of all clients, rounded down.
        seed: of the choice of hostile clients. With more of them, those of fewer are among them.
    """

    clients: float
    seed: int

    def __post_init__(self) -> None:
        if self.clients < 0 or (self.clients >= 1 and self.clients != int(self.clients)) or self.seed < 0:
            raise UserError(
                f"{type(self).__name__} needs a whole number of clients, or a share in [0, 1), and a seed of at least "
                f"0; got {self.clients} and {self.seed}."
            )

    def hostile(self, clients: Sequence[Client]) -> frozenset[int]:
        """The ids of the hostile ones of all clients; raises UserError if there are fewer than are to be hostile."""
        # As a fraction of decimals, since 0.29 * 100 is less than 29 in floating point.
        share = Fraction(str(self.clients))
        count = math.floor(share * len(clients)) if share < 1 else int(share)
        if count > len(clients):
            raise UserError(f"Expected at most {len(clients)} hostile clients, as there are no more; got {count}.")
        ids = sorted(client.id for client in clients)
        # Each has a draw of its own, so that with more hostile clients those of fewer are among them.
        drawn = {client: derive_seed(HOSTILE, self.seed, client) for client in ids}
        return frozenset(sorted(ids, key=drawn.__getitem__)[:count])

    def training_data(self, data: FederatedData, module: FederatedModule) -> TrainingData:
        """Make what the clients train on of honest data that are bound to the method; leave the method unchanged."""
        return data

    def add_on(self, clients: Sequence[Client]) -> AddOn | None:
        """What changes the uploads of hostile ones of all clients; None if the attack leaves uploads alone."""
        return None

    def measure(
        self,
        module: FederatedModule,
        data: TrainingData,
        fabric: Fabric,
        deployed: State,
        personal: Mapping[int, State],
    ) -> dict[str, float]:
        """Measure how far the attack succeeds, in each evaluated round; ``data`` is what ``training_data`` returned."""
        return {}
