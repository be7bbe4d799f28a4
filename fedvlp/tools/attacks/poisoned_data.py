"""Training data of which hostile clients get others than honest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedvlp.core.protocols import Batch, Loader, TrainingData
from fedvlp.core.state import Client

Poison = Callable[[Loader, Client, int], Loader]
"""From a client's honest batches, the client and their seed to those that it trains on."""


@dataclass(frozen=True)
class PoisonedData:
    """The same clients, of whom hostile ones train on poisoned batches.

    Args:
        data: the honest data.
        poison: what becomes of a hostile client's batches.
        hostile: ids of the hostile clients.
    """

    data: TrainingData
    poison: Poison
    hostile: frozenset[int]

    @property
    def clients(self) -> list[Client]:
        """All clients."""
        return self.data.clients

    @property
    def batch_size(self) -> int:
        """Images in a batch."""
        return int(getattr(self.data, "batch_size", 1))

    def train_dataloader(self, client: Client | None = None, seed: int | None = None) -> Loader:
        """Returns one client's batches, poisoned if it is hostile."""
        loader = self.data.train_dataloader(client, seed=seed)
        if client is None or seed is None or client.id not in self.hostile:
            return loader
        return self.poison(loader, client, seed)


@dataclass(frozen=True)
class ChangedBatches:
    """Batches of which each pass is changed as a whole.

    Args:
        loader: the batches.
        change: from one pass to the changed one.
    """

    loader: Loader
    change: Callable[[Iterator[Batch]], Iterator[Batch]]

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        """Goes through the images once."""
        return self.change(iter(self.loader))
