"""Where clients train, keep what is theirs and are measured: in this program, or wherever another engine has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from lightning import Fabric

from fedvlp.core.module import FederatedModule
from fedvlp.core.predictions import Predictions
from fedvlp.core.protocols import MeasuredData
from fedvlp.core.state import State
from fedvlp.runs.client_store import ClientStore, DiskStore, MemoryStore
from fedvlp.training.batched.batched_trainer import BatchedTrainer
from fedvlp.training.client_trainer import ClientSlot, ClientTrainer
from fedvlp.training.evaluation import evaluate
from fedvlp.training.fit_options import FitOptions
from fedvlp.training.sequential import SequentialTrainer


@runtime_checkable
class Engine(Protocol):
    """What a federation leaves to the place where its clients are; all else is the same for every place."""

    def client_store(self, run: Path | None) -> ClientStore:
        """Returns what keeps the clients' own tensors from round to round.

        Args:
            run: the run's folder, if there is one.
        """
        ...

    def client_trainer(self, slot: ClientSlot) -> ClientTrainer:
        """Returns what trains the clients of every phase.

        Args:
            slot: the resident module, the data and the options of local training.
        """
        ...

    def evaluate(
        self,
        module: FederatedModule,
        data: MeasuredData,
        fabric: Fabric,
        deployed: State,
        personal: Mapping[int, State],
    ) -> dict[str, float]:
        """Returns the accuracies as :func:`fedvlp.training.evaluation.evaluate` does."""
        ...


@dataclass
class LocalEngine:
    """Trains and measures all clients in this program.

    Args:
        options: how the federation trains.

    Attributes:
        initial_personal: with what the clients of the method that was trained last began; None before that.
        predictions: by split, the predicted classes of the last measurement, also of images out of distribution.
    """

    options: FitOptions
    initial_personal: State | None = None
    predictions: dict[str, Predictions] = field(default_factory=dict)

    def client_store(self, run: Path | None) -> ClientStore:
        """Returns memory, or files in the run's folder where the options ask for them."""
        return DiskStore(run) if self.options.personal_on_disk and run is not None else MemoryStore()

    def client_trainer(self, slot: ClientSlot) -> ClientTrainer:
        """Returns what trains one client after another, or several at once where the options ask for it."""
        self.initial_personal = slot.initial_personal
        if self.options.clients_per_step > 1:
            return BatchedTrainer(slot, self.options.clients_per_step)
        return SequentialTrainer(slot)

    def evaluate(
        self,
        module: FederatedModule,
        data: MeasuredData,
        fabric: Fabric,
        deployed: State,
        personal: Mapping[int, State],
    ) -> dict[str, float]:
        """Measures on all splits in this process."""
        # Where nothing was trained, the method still holds what its clients begin with.
        initial = module.personal_state() if self.initial_personal is None else self.initial_personal
        self.predictions = {}
        return evaluate(module, data, fabric, deployed, personal, initial, self.predictions)
