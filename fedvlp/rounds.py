"""One communication round: each phase trains the cohort, gathers what was sent, and lets the strategy combine it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed
from lightning import Fabric

from fedvlp.checkpoint import Progress, Row
from fedvlp.errors import UserError
from fedvlp.local_training import num_steps, train_client
from fedvlp.module import FederatedModule, Phase, RoundContext
from fedvlp.protocols import FederatedData
from fedvlp.seeding import sample_cohort, seed_of, seeded
from fedvlp.state import Client, ClientUpdate, ServerState, State, is_finite


@dataclass(frozen=True)
class LocalResult:
    """What one client's local training left.

    Attributes:
        update: what it sends.
        kept: what stays on it.
    """

    update: ClientUpdate
    kept: State


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
        local_epochs: passes over a client's data in each phase.
        local_steps: optimizer steps instead of passes; None for passes.
        cohort_size: clients of a round; None for all.
        notify: calls a hook of every callback.
    """

    fabric: Fabric
    module: FederatedModule
    data: FederatedData
    phases: Sequence[Phase]
    newcomer: State
    seed: int
    local_epochs: int
    local_steps: int | None
    cohort_size: int | None
    notify: Callable[..., None]

    def run(self, progress: Progress) -> tuple[ServerState, dict[int, State], Row]:
        """Returns the server's state after a round, what every client keeps, and the round's metrics so far."""
        server, personal = progress.server, dict(progress.personal)
        row: Row = {"round": server.round + 1}
        cohort = sample_cohort(self.data.clients, self.cohort_size, seed_of(self.seed, server.round))
        self.notify("on_round_start", phases=self.phases, cohort=cohort)
        for index, phase in enumerate(self.phases):
            mine = cohort[self.fabric.global_rank :: self.fabric.world_size]
            results = self._gather([self._train(server, personal, index, client) for client in mine])
            accepted = self._accepted(results, row)
            personal |= {result.update.client.id: result.kept for result in accepted if result.kept}
            before, server = server, phase.strategy.aggregate(server, [result.update for result in accepted])
            updates = [result.update for result in results]
            for update in updates:
                row |= {f"client/{update.client.name}/{name}": value for name, value in update.metrics.items()}
            self.notify("on_phase_end", phase=phase, before=before, server=server, updates=updates)
        return replace(server, round=server.round + 1), personal, row

    def _train(self, server: ServerState, personal: Mapping[int, State], index: int, client: Client) -> LocalResult:
        """Trains one client in the phase of this index."""
        phase, module = self.phases[index], self.module
        module.load_state(phase.strategy.broadcast(server, client))
        module.load_state(personal.get(client.id, self.newcomer))
        module.begin(RoundContext(server.round, phase, client))
        seed = seed_of(self.seed, server.round, index, client.id)
        loader = self.data.train_dataloader(client, seed=seed)
        steps = num_steps(len(loader), self.local_epochs, self.local_steps)
        self.notify("on_client_start", phase=phase, client=client, steps=steps)
        with seeded(seed):
            metrics = train_client(
                self.fabric, module, loader, steps, lambda loss: self.notify("on_client_step", client=client, loss=loss)
            )
        update = ClientUpdate(client, module.upload_state(), client.num_examples, metrics)
        module.context = None
        self.notify("on_client_end", phase=phase, update=update)
        return LocalResult(update, module.personal_state())

    def _gather(self, results: list[LocalResult]) -> list[LocalResult]:
        """Returns all processes' results, sorted by client id."""
        if self.fabric.world_size > 1:
            parts: list[Any] = [None] * self.fabric.world_size
            torch.distributed.all_gather_object(parts, results)
            results = [result for part in parts for result in part]
        return sorted(results, key=lambda result: result.update.client.id)

    def _accepted(self, results: Sequence[LocalResult], row: Row) -> list[LocalResult]:
        """Leaves out clients whose tensors are not finite, and says so; with none left the run stops."""
        finite = [is_finite(result.update.state) and is_finite(result.kept) for result in results]
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
