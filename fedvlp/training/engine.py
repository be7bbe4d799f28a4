"""Where clients train, keep what is theirs and are measured: in this program, or wherever another engine has them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from fedvlp.core.balance import ClassCounts, count_classes
from fedvlp.core.module import FederatedModule
from fedvlp.core.predictions import Predictions
from fedvlp.core.roles import OUT_OF_DISTRIBUTION
from fedvlp.core.state import Client, ClientUpdate, State, detached
from fedvlp.runs.client_store import ClientStore, DiskStore
from fedvlp.training.callback import RunView
from fedvlp.training.client import Workspace, train_clients
from fedvlp.training.distributed import GlooStrategy
from fedvlp.training.evaluation import evaluate
from fedvlp.training.secure_sum import summed
from fedvlp.training.task import ClientResult, PhaseTask


@dataclass(frozen=True)
class PhaseResults:
    """What the clients of a phase left.

    Attributes:
        clients: The result of each client, in any order.
        total: The weighted mean of all updates as one update, where the server sees no single update.
        is_final: Whether some clients can't repeat the round.
    """

    clients: list[ClientResult]
    total: ClientUpdate | None = None
    is_final: bool = False

    @classmethod
    def of_sum(cls, clients: Sequence[ClientResult], mean: State, is_final: bool = False) -> PhaseResults:
        """Results of a sum: the mean, as large as any update, is all that the server knows of a client's update."""
        shown: list[ClientResult] = []
        for result in clients:
            update = result.update if result.failure else replace(result.update, state=mean, metrics={})
            shown.append(replace(result, update=update))
        return cls(shown, next((result.update for result in shown if not result.failure), None), is_final)

    def updates(self, accepted: Iterable[ClientResult]) -> list[ClientUpdate]:
        """The updates that the server combines: those of accepted clients, or the one sum."""
        return [result.update for result in accepted] if self.total is None else [self.total]


@runtime_checkable
class Engine(Protocol):
    """What a federation leaves to the place where its clients are; all else is the same for every place."""

    def client_store(self, run: Path | None) -> ClientStore:
        """What keeps the clients' own tensors from round to round, in the run's folder if there is one."""

    def train(self, clients: Sequence[Client], task: PhaseTask, workspace: Workspace) -> PhaseResults:
        """Train a phase's clients, some of which may fail; sum their updates if ``options.server.secure_sum``."""

    def evaluate(
        self, federation: RunView, module: FederatedModule, deployed: State, personal: Mapping[int, State]
    ) -> dict[str, float]:
        """The accuracies as :func:`fedvlp.training.evaluation.evaluate` returns them."""


@dataclass
class LocalEngine:
    """Trains and measures all clients in this program, of which each process trains a part.

    Attributes:
        initial_personal: Personal tensors of the last trained method before its first round; None before that.
        predictions: by split, the predicted classes of the last measurement, also of images out of distribution.
        class_counts: Counts by class for each split of the last measurement.
    """

    personal_on_disk: bool = False
    initial_personal: State | None = None
    predictions: dict[str, Predictions] = field(default_factory=dict)
    class_counts: dict[str, ClassCounts] = field(default_factory=dict)

    def client_store(self, run: Path | None) -> ClientStore:
        """Memory, or files in the run's folder where the options ask for them."""
        return DiskStore(run) if self.personal_on_disk and run is not None else ClientStore()

    def train(self, clients: Sequence[Client], task: PhaseTask, workspace: Workspace) -> PhaseResults:
        """Train this process's share of the clients, and exchange the results with the other processes."""
        self.initial_personal = workspace.initial_personal
        fabric = workspace.fabric
        # Without batches a client's images are its steps; only the balance of processes depends on it.
        batch_size = getattr(workspace.data, "batch_size", 1)
        local = workspace.options.local
        shares = balance_clients(clients, lambda client: local.num_steps(client, batch_size), fabric.world_size)
        # Otherwise an error of an earlier phase could be raised.
        workspace.errors.clear()
        results = train_clients(shares[fabric.global_rank], task, workspace)
        if isinstance(fabric.strategy, GlooStrategy):
            by_rank = fabric.strategy.gather([_on_cpu(result) for result in results])
            results = [result for of_rank in by_rank for result in of_rank]
        # Gathered by rank, and ranks train unequal shares.
        results = sorted(results, key=lambda result: result.client.id)
        if workspace.options.server.secure_sum:
            return PhaseResults.of_sum(*summed(results, task.phase.strategy))
        return PhaseResults(results)

    def evaluate(
        self, federation: RunView, module: FederatedModule, deployed: State, personal: Mapping[int, State]
    ) -> dict[str, float]:
        """Measure on all splits in this process."""
        # Where nothing was trained, the method still holds what its clients begin with.
        initial = module.personal_state() if self.initial_personal is None else self.initial_personal
        self.predictions = {}
        accuracy = evaluate(module, federation.data, federation.fabric, deployed, personal, initial, self.predictions)
        self.class_counts = {}
        for name, predictions in self.predictions.items():
            if name.split("/")[0] != OUT_OF_DISTRIBUTION:
                class_names = predictions.class_names or federation.data.class_names
                self.class_counts[name] = count_classes(predictions, class_names)
        return accuracy


def balance_clients(clients: Sequence[Client], steps: Callable[[Client], int], processes: int) -> list[list[Client]]:
    """The clients of each process by ascending id, so that all are done at about the same time.

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
        # Ties go to the lower process, so that all processes find the same shares.
        heapq.heappush(loads, (load + steps(client), process))
    return [sorted(share, key=lambda client: client.id) for share in shares]


def _on_cpu(result: ClientResult) -> ClientResult:
    """Copy a result's tensors: pickle would send the whole storage of a view, and GPUs differ by process."""
    stored = [each if isinstance(each, str) else detached(each) for each in (result.personal, result.optimizer_state)]
    update = replace(result.update, state=detached(result.update.state))
    return replace(result, update=update, personal=stored[0], optimizer_state=stored[1])
