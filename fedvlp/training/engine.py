"""Where clients train, keep what is theirs and are measured: in this program, or wherever another engine has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from lightning import Fabric

from fedvlp.core.module import FederatedModule
from fedvlp.core.predictions import Predictions
from fedvlp.core.protocols import MeasuredData
from fedvlp.core.state import Client, State
from fedvlp.runs.client_store import ClientStore, DiskStore, MemoryStore
from fedvlp.training.accept import AcceptancePolicy
from fedvlp.training.client import ClientResult, Workspace, train_clients
from fedvlp.training.cohort import balance_clients
from fedvlp.training.distributed import gather_results
from fedvlp.training.evaluation import evaluate
from fedvlp.training.task import PhaseTask


@runtime_checkable
class Engine(Protocol):
    """What a federation leaves to the place where its clients are; all else is the same for every place."""

    def client_store(self, run: Path | None) -> ClientStore:
        """What keeps the clients' own tensors from round to round.

        Args:
            run: the run's folder, if there is one.
        """
        ...

    def train(
        self, clients: Sequence[Client], task: PhaseTask, here: Workspace, policy: AcceptancePolicy
    ) -> list[ClientResult]:
        """The results of a phase's clients, of which some may have failed.

        Args:
            clients: who is asked.
            task: the phase.
            here: the resident module, the data and the options of local training.
            policy: what is done about a client that fails.
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
        """The accuracies as :func:`fedvlp.training.evaluation.evaluate` returns them."""
        ...


@dataclass
class LocalEngine:
    """Trains and measures all clients in this program, of which each process trains a part.

    Args:
        personal_on_disk: whether what stays on the clients is kept in files of the run's folder.

    Attributes:
        initial_personal: with what the clients of the method that was trained last began; None before that.
        predictions: by split, the predicted classes of the last measurement, also of images out of distribution.
    """

    personal_on_disk: bool = False
    initial_personal: State | None = None
    predictions: dict[str, Predictions] = field(default_factory=dict)

    def client_store(self, run: Path | None) -> ClientStore:
        """Memory, or files in the run's folder where the options ask for them."""
        return DiskStore(run) if self.personal_on_disk and run is not None else MemoryStore()

    def train(
        self, clients: Sequence[Client], task: PhaseTask, here: Workspace, policy: AcceptancePolicy
    ) -> list[ClientResult]:
        """Trains this process's share of the clients, and exchanges the results with the other processes."""
        self.initial_personal = here.initial_personal
        batch_size = getattr(here.data, "batch_size", 1)
        shares = balance_clients(
            clients, lambda client: here.local.num_steps(client, batch_size), here.fabric.world_size
        )
        here.errors.clear()
        results = train_clients(shares[here.fabric.global_rank], task, here, policy.on_failure)
        return gather_results(here.fabric, results)

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
