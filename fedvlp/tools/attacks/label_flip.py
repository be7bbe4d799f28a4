"""An attack on labels: the classes in reverse order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import Batch, FederatedData, Loader, TrainingData
from fedvlp.core.state import Client
from fedvlp.tools.attacks.poisoned_data import ChangedBatches, PoisonedData
from fedvlp.training.attack import Attack


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Hostile clients train on wrong labels, C - 1 - c for class c of C (Fang et al., USENIX Security 2020).

    They label the images that they evaluate on rightly, as accuracy is the simulation's own.

    Args:
        clients: How many clients are hostile: a number, or a share below 1, rounded down.
        seed: Seed of the choice of hostile clients.
    """

    clients: float = 0.3
    seed: int = 0

    def training_data(self, data: FederatedData, module: FederatedModule) -> TrainingData:
        """Returns the data with flipped labels on hostile clients."""
        highest = len(data.class_names) - 1

        def flip(batches: Iterator[Batch]) -> Iterator[Batch]:
            for inputs, labels in batches:
                yield inputs, highest - labels

        def poison(loader: Loader, client: Client, seed: int) -> Loader:
            return ChangedBatches(loader, flip)

        return PoisonedData(data, poison, self.hostile(data.clients))
