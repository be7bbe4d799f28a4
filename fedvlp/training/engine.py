"""Engines train and evaluate clients and store their personal tensors, in this program or at sites."""

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
from fedvlp.training.secure_sum import sum_results
from fedvlp.training.task import ClientResult, PhaseTask


@dataclass(frozen=True)
class PhaseResults:
    """Results of a phase.

    Attributes:
        clients: The result of each client, in any order.
        total: The weighted mean of all updates as one update, if a secure sum hides single updates.
        is_final: Whether some clients can't repeat the round.
    """

    clients: list[ClientResult]
    total: ClientUpdate | None = None
    is_final: bool = False

    @classmethod
    def from_sum(cls, clients: Sequence[ClientResult], mean: State, is_final: bool = False) -> PhaseResults:
        """Make the results of a secure sum, in which the mean replaces each client's update."""
        visible: list[ClientResult] = []
        for result in clients:
            update = result.update if result.failure else replace(result.update, state=mean, metrics={})
            visible.append(replace(result, update=update))
        return cls(visible, next((result.update for result in visible if not result.failure), None), is_final)

    def updates(self, accepted: Iterable[ClientResult]) -> list[ClientUpdate]:
        """List the updates for the server to combine: the accepted clients' updates, or the secure sum's mean."""
        return [result.update for result in accepted] if self.total is None else [self.total]


@runtime_checkable
class Engine(Protocol):
    """The part of a federation that depends on whether clients are simulated or real sites."""

    def client_store(self, run: Path | None) -> ClientStore:
        """Make the store of clients' personal tensors between rounds, in the run folder if there is one."""

    def train(self, clients: Sequence[Client], task: PhaseTask, workspace: Workspace) -> PhaseResults:
        """Train the clients of a phase; some may fail. Sum their updates if ``options.server.secure_sum``."""

    def evaluate(
        self, federation: RunView, module: FederatedModule, deployed: State, personal: Mapping[int, State]
    ) -> dict[str, float]:
        """Compute accuracies in percent, like :func:`fedvlp.training.evaluation.evaluate`."""


@dataclass
class LocalEngine:
    """Engine that trains and evaluates all clients in this program. Each process trains a part of the clients.

    Attributes:
        initial_personal: Personal tensors of the last trained method before its first round; None before training.
        predictions: Predicted classes of the last evaluation by split, including images out of distribution.
        class_counts: Counts by class of the last evaluation by split.
    """

    personal_on_disk: bool = False
    initial_personal: State | None = None
    predictions: dict[str, Predictions] = field(default_factory=dict)
    class_counts: dict[str, ClassCounts] = field(default_factory=dict)

    def client_store(self, run: Path | None) -> ClientStore:
        """Make a store in memory, or in the run folder if ``personal_on_disk``."""
        return DiskStore(run) if self.personal_on_disk and run is not None else ClientStore()

    def train(self, clients: Sequence[Client], task: PhaseTask, workspace: Workspace) -> PhaseResults:
        """Train this process's share of the clients, and exchange the results with the other processes."""
        self.initial_personal = workspace.initial_personal
        fabric = workspace.fabric
        # Without a batch size count images instead of steps, which affects only the balance of processes.
        batch_size = getattr(workspace.data, "batch_size", 1)
        local = workspace.options.local
        shares = balance_clients(clients, lambda client: local.num_steps(client, batch_size), fabric.world_size)
        # Errors of earlier phases must not be raised for this one.
        workspace.errors.clear()
        results = train_clients(shares[fabric.global_rank], task, workspace)
        if isinstance(fabric.strategy, GlooStrategy):
            by_rank = fabric.strategy.gather([_on_cpu(result) for result in results])
            results = [result for rank_results in by_rank for result in rank_results]
        # They were gathered by rank, and ranks train different shares.
        results = sorted(results, key=lambda result: result.client.id)
        if workspace.options.server.secure_sum:
            return PhaseResults.from_sum(*sum_results(results, task.phase.strategy))
        return PhaseResults(results)

    def evaluate(
        self, federation: RunView, module: FederatedModule, deployed: State, personal: Mapping[int, State]
    ) -> dict[str, float]:
        """Evaluate all splits in this process."""
        # Before any training, the method still holds the initial personal tensors.
        initial = module.personal_state() if self.initial_personal is None else self.initial_personal
        self.predictions = {}
        accuracy = evaluate(module, federation.data, federation.fabric, deployed, personal, initial, self.predictions)
        self.class_counts = {}
        for name, predictions in self.predictions.items():
            if name.split("/")[0] != OUT_OF_DISTRIBUTION and not predictions.has_several_labels:
                class_names = predictions.class_names or federation.data.class_names
                self.class_counts[name] = count_classes(predictions, class_names)
        return accuracy


def balance_clients(clients: Sequence[Client], steps: Callable[[Client], int], processes: int) -> list[list[Client]]:
    """Divide clients, by ascending id, among processes that should finish at about the same time.

    Clients with the most steps are assigned first, each to the process with the fewest steps so far (Graham 1969). The
    longest process takes at most 4/3 of the optimum.

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
        # Ties go to the lower process, so that all processes compute the same shares.
        heapq.heappush(loads, (load + steps(client), process))
    return [sorted(share, key=lambda client: client.id) for share in shares]


def _on_cpu(result: ClientResult) -> ClientResult:
    """Copy a result's tensors, because pickle would send the whole storage of a view, and GPUs differ by process."""
    stored = [part if isinstance(part, str) else detached(part) for part in (result.personal, result.optimizer_state)]
    update = replace(result.update, state=detached(result.update.state))
    return replace(result, update=update, personal=stored[0], optimizer_state=stored[1])
