"""One communication round: each phase trains the cohort, gathers what was sent, and lets the strategy combine it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed
from lightning import Fabric
from torch import Tensor

from fedvlp.checkpoint import Progress, Row, below
from fedvlp.errors import UserError
from fedvlp.local_training import LocalTraining, train_client
from fedvlp.module import FederatedModule, Phase, RoundContext
from fedvlp.protocols import FederatedData, Loader
from fedvlp.seeding import restored_generators, sample_cohort, seed_generators, seed_of
from fedvlp.state import Client, ClientUpdate, State, is_finite


@dataclass(frozen=True)
class LocalResult:
    """What one client's local training left.

    Attributes:
        update: what it sends.
        kept: what stays on it.
        memory: what its optimizer goes on from; empty where it starts anew.
    """

    update: ClientUpdate
    kept: State
    memory: State


@dataclass(frozen=True)
class Rounds:
    """Runs rounds of one method on one data set.

    Args:
        fabric: device, precision and processes.
        module: the one resident method, whose tensors are swapped.
        data: the clients and their batches.
        phases: what a round consists of.
        newcomer: what a client keeps before its first round.
        seed: with round, phase and client it fixes every random draw.
        rounds: number of all rounds, which a schedule may depend on.
        local: how long a client trains and with which optimizer.
        cohort_size: clients of a round; None for all.
        notify: calls a hook of every callback.
    """

    fabric: Fabric
    module: FederatedModule
    data: FederatedData
    phases: Sequence[Phase]
    newcomer: State
    seed: int
    rounds: int
    local: LocalTraining
    cohort_size: int | None
    notify: Callable[..., None]

    def run(self, progress: Progress) -> tuple[Progress, Row]:
        """Returns where the federation stands after a round, and the round's metrics so far."""
        row: Row = {"round": progress.server.round + 1}
        if self.local.schedule is not None:
            row["learning_rate_factor"] = self._factor(progress.server.round)
        cohort = sample_cohort(self.data.clients, self.cohort_size, seed_of(self.seed, progress.server.round))
        self.notify("on_round_start", phases=self.phases, cohort=cohort)
        for index in range(len(self.phases)):
            progress = self._phase(progress, index, cohort, row)
        return replace(progress, server=replace(progress.server, round=progress.server.round + 1)), row

    def _phase(self, progress: Progress, index: int, cohort: Sequence[Client], row: Row) -> Progress:
        """Returns where the federation stands after the phase of this index; adds its metrics to the row."""
        phase, before = self.phases[index], progress.server
        mine = cohort[self.fabric.global_rank :: self.fabric.world_size]
        with restored_generators():
            results = self._gather([self._train(progress, index, client) for client in mine])
        accepted = self._accepted(results, row)
        personal, optimizers = dict(progress.personal), dict(progress.optimizers)
        for result in accepted:
            client = result.update.client.id
            if result.kept:
                personal[client] = result.kept
            if result.memory:
                optimizers[client] = {**optimizers.get(client, {}), **result.memory}
        server = phase.strategy.aggregate(before, [result.update for result in accepted])
        updates = [result.update for result in results]
        for update in updates:
            row |= {f"client/{update.client.name}/{name}": value for name, value in update.metrics.items()}
        self.notify("on_phase_end", phase=phase, before=before, server=server, updates=updates)
        return replace(progress, server=server, personal=personal, optimizers=optimizers)

    def _train(self, progress: Progress, index: int, client: Client) -> LocalResult:
        """Trains one client in the phase of this index."""
        round, phase, module = progress.server.round, self.phases[index], self.module
        module.load_state(phase.strategy.broadcast(progress.server, client))
        module.load_state(self._kept(progress, client))
        module.begin(RoundContext(round, phase, client))
        batches, steps = self.local.batches(lambda shuffle: self._loader(shuffle, index, client), round)
        memory = None if self.local.reset_optimizer else below(progress.optimizers.get(client.id, {}), str(index))
        self.notify("on_client_start", phase=phase, client=client, steps=steps)

        def on_step(loss: Tensor) -> None:
            self.notify("on_client_step", client=client, loss=loss)

        seed_generators(seed_of(self.seed, round, index, client.id))
        metrics, memory = train_client(self.fabric, module, batches, on_step, self._factor(round), memory)
        update = ClientUpdate(client, module.upload_state(), client.num_examples, metrics)
        module.context = None
        self.notify("on_client_end", phase=phase, update=update)
        return LocalResult(update, module.personal_state(), {f"{index}/{key}": value for key, value in memory.items()})

    def _kept(self, progress: Progress, client: Client) -> State:
        """Returns what stays on a client: from its last round, or for its first."""
        if client.id in progress.personal:
            return progress.personal[client.id]
        if not self.newcomer:
            return {}
        seed_generators(seed_of(self.seed, client.id))
        return self.module.newcomer_state(self.newcomer)

    def _loader(self, shuffle: int, index: int, client: Client) -> Loader:
        """Returns a client's batches in the order of a shuffle's number."""
        return self.data.train_dataloader(client, seed=seed_of(self.seed, shuffle, index, client.id))

    def _factor(self, round: int) -> float:
        """Returns the factor on the learning rates in a round."""
        return 1.0 if self.local.schedule is None else self.local.schedule.factor(round, self.rounds)

    def _gather(self, results: list[LocalResult]) -> list[LocalResult]:
        """Returns all processes' results, sorted by client id."""
        if self.fabric.world_size > 1:
            parts: list[Any] = [None] * self.fabric.world_size
            torch.distributed.all_gather_object(parts, results)
            results = [result for part in parts for result in part]
        return sorted(results, key=lambda result: result.update.client.id)

    def _accepted(self, results: Sequence[LocalResult], row: Row) -> list[LocalResult]:
        """Leaves out clients whose tensors are not finite, and says so; with none left the run stops."""
        finite = [all(map(is_finite, (result.update.state, result.kept, result.memory))) for result in results]
        accepted = [result for result, good in zip(results, finite, strict=True) if good]
        refused = [result.update.client.name for result, good in zip(results, finite, strict=True) if not good]
        if refused:
            row["refused_clients"] = len(refused)
            self.fabric.print(f"round {row['round']}: refused updates that are not finite, from {refused}", flush=True)
        if not accepted:
            raise UserError(
                f"Round {row['round']}: every client's update holds NaN or infinity, so training diverged. "
                "Lower the learning rate or use precision 32-true; the last checkpoint is still good."
            )
        return accepted
