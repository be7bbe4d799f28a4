"""One communication round: each phase trains the cohort, gathers what was sent, and lets the strategy combine it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from lightning import Fabric
from torch import Tensor

from fedvlp.core.module import FederatedModule, Phase, RoundContext
from fedvlp.core.protocols import FederatedData, Loader
from fedvlp.core.state import Client, ClientUpdate, State, is_finite, select
from fedvlp.runs.checkpoint import Row, RunState
from fedvlp.runs.client_store import InMemory, OnDisk, with_kept
from fedvlp.training.batched.batched_training import BatchedTraining, Start
from fedvlp.training.cohort import balance_clients, sample_cohort
from fedvlp.training.collectives import LocalResult, gathered
from fedvlp.training.local_training import LocalTraining, num_steps, train_client
from fedvlp.training.optimizers import Optimizers
from fedvlp.training.tensor_arena import TensorArena
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed, derive_seeds, restored_generators, seed_generators
from fedvlp.utils.tensor_files import strip_prefix

MOST_COLUMNS = 100


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
        states: keeps what stays on the clients.
        batched: trains several clients in one step where it is asked to.
        buffers: hold what a cohort sends.
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
    states: InMemory | OnDisk
    batched: BatchedTraining
    buffers: TensorArena = field(default_factory=TensorArena)

    def run(self, progress: RunState) -> tuple[RunState, Row]:
        """Returns where the federation stands after a round, and the round's metrics so far."""
        row: Row = {"round": progress.server.round + 1}
        if self.local.schedule is not None:
            row["learning_rate_factor"] = self._factor(progress.server.round)
        cohort = sample_cohort(self.data.clients, self.cohort_size, derive_seed(self.seed, progress.server.round))
        self.notify("on_round_start", phases=self.phases, cohort=cohort)
        for index in range(len(self.phases)):
            progress = self._phase(progress, index, cohort, row)
        return replace(progress, server=replace(progress.server, round=progress.server.round + 1)), row

    def _phase(self, progress: RunState, index: int, cohort: Sequence[Client], row: Row) -> RunState:
        """Returns where the federation stands after the phase of this index; adds its metrics to the row."""
        phase, before = self.phases[index], progress.server
        mine = balance_clients(cohort, self._num_steps, self.fabric.world_size)[self.fabric.global_rank]
        results = gathered(self.fabric, self._trained(progress, index, mine))
        accepted = self._accepted(results, row)
        server = phase.strategy.aggregate(before, [result.update for result in accepted])
        updates = [result.update for result in results]
        row |= local_metrics(updates, by_client=len(self.data.clients) <= MOST_COLUMNS)
        self.notify("on_phase_end", phase=phase, before=before, server=server, updates=updates)
        personal = {result.update.client.id: result.kept for result in accepted}
        optimizers = {result.update.client.id: result.memory for result in accepted}
        return replace(
            progress,
            server=server,
            personal=with_kept(progress.personal, personal),
            optimizers=with_kept(progress.optimizers, optimizers),
        )

    def _trained(self, progress: RunState, index: int, clients: Sequence[Client]) -> list[LocalResult]:
        """Trains clients in the phase of this index."""
        ids = [client.id for client in clients]
        seeds = dict(zip(ids, derive_seeds((self.seed, progress.server.round, index), ids), strict=True))
        optimizers = Optimizers(self.fabric, self.module)

        def start(client: Client) -> Start:
            return self._start(progress, index, client, seeds[client.id])

        def alone(client: Client) -> LocalResult:
            return self._train(start(client), index, seeds[client.id], optimizers)

        with restored_generators(), fixed_tensors(self.module):
            name, factor = self.phases[index].name, self._factor(progress.server.round)
            results = list(self.batched.train(name, clients, alone, start, partial(self._finish, index), factor))
        self.module.context = None
        self.buffers.release()
        self.states.finish()
        return results

    def _start(self, progress: RunState, index: int, client: Client, seed: int) -> Start:
        """Loads what a client begins with into the module, and returns the rest of it."""
        round, phase, module = progress.server.round, self.phases[index], self.module
        module.load_state(phase.strategy.broadcast(progress.server, client))
        if kept := self._kept(progress, client):
            module.load_state(kept)
        context = RoundContext(round, phase, client)
        module.start_client(context)
        batches, steps = self.local.batches(lambda shuffle: self._loader(shuffle, index, client, seed, round), round)
        memory = None if self.local.reset_optimizer else progress.optimizers.get(client.id, {})
        return Start(context, batches, steps, memory, None if memory is None else strip_prefix(memory, str(index)))

    def _train(self, start: Start, index: int, seed: int, optimizers: Optimizers) -> LocalResult:
        """Trains the client that is in the module."""
        phase, client = start.context.phase, start.context.client
        self.notify("on_client_start", phase=phase, client=client, steps=start.steps)

        def on_step(loss: Tensor) -> None:
            self.notify("on_client_step", client=client, loss=loss)

        seed_generators(seed)
        factor = self._factor(start.context.round)
        metrics, learned = train_client(optimizers, start.batches, on_step, factor, start.memory)
        return self._result(index, start, metrics, learned)

    def _finish(self, index: int, start: Start, losses: Sequence[Tensor], learned: State) -> LocalResult:
        """Returns the result of the client in the module, which was trained together with others."""
        phase, client = start.context.phase, start.context.client
        self.notify("on_client_start", phase=phase, client=client, steps=start.steps)
        for loss in losses:
            self.notify("on_client_step", client=client, loss=loss)
        return self._result(index, start, self.module.logged_means(), learned)

    def _result(self, index: int, start: Start, metrics: dict[str, float], learned: State) -> LocalResult:
        """Returns what the training of the client in the module left."""
        module, client = self.module, start.context.client
        sent = self.buffers.copy(self._sent(start.context.phase))
        update = ClientUpdate(client, sent, client.num_examples, metrics)
        self.notify("on_client_end", phase=start.context.phase, update=update)
        personal = module.personal_state()
        memory = {**(start.kept or {}), **{f"{index}/{key}": value for key, value in learned.items()}}
        is_good = is_finite(sent, personal, memory)
        return LocalResult(update, *self.states.keep(start.context.round, client.id, personal, memory), is_good)

    def _sent(self, phase: Phase) -> State:
        """Returns what the client in the module sends; not as a copy, where the method leaves that to the base."""
        if type(self.module).upload_state is FederatedModule.upload_state:
            return select(self.module.exchangeable_tensors(), phase.upload)
        return self.module.upload_state()

    def _kept(self, progress: RunState, client: Client) -> State:
        """Returns what stays on a client: from its last round, or for its first."""
        if client.id in progress.personal:
            return progress.personal[client.id]
        if not self.newcomer:
            return {}
        seed_generators(derive_seed(self.seed, client.id))
        return self.module.initial_personal_state(self.newcomer)

    def _loader(self, shuffle: int, index: int, client: Client, seed: int, round: int) -> Loader:
        """Returns a client's batches in the order of a shuffle's number; this round's has the client's seed."""
        chosen = seed if shuffle == round else derive_seed(self.seed, shuffle, index, client.id)
        return self.data.train_dataloader(client, seed=chosen)

    def _num_steps(self, client: Client) -> int:
        """Returns about how long a client trains, in steps."""
        batches = -(-client.num_examples // getattr(self.data, "batch_size", 1))
        return num_steps(batches, self.local.epochs, self.local.steps)

    def _factor(self, round: int) -> float:
        """Returns the factor on the learning rates in a round."""
        return 1.0 if self.local.schedule is None else self.local.schedule.factor(round, self.rounds)

    def _accepted(self, results: Sequence[LocalResult], row: Row) -> list[LocalResult]:
        """Leaves out clients whose tensors are not finite, and says so; with none left the run stops."""
        accepted = [result for result in results if result.is_finite]
        refused = [result.update.client.name for result in results if not result.is_finite]
        if refused:
            row["refused_clients"] = len(refused)
            self.fabric.print(f"round {row['round']}: refused updates that are not finite, from {refused}", flush=True)
        if not accepted:
            raise UserError(
                f"Round {row['round']}: every client's update holds NaN or infinity, so training diverged. "
                "Lower the learning rate or use precision 32-true; the last checkpoint is still good."
            )
        return accepted


@contextmanager
def fixed_tensors(module: FederatedModule) -> Iterator[None]:
    """Looks only once for the module's tensors.

    Raises:
        UserError: at the end, if one was replaced in the block, for what was trained in it was then never sent.
    """
    known = module.known_tensors = module.exchangeable_tensors()
    try:
        yield
    finally:
        module.known_tensors = None
    if replaced := [name for name, tensor in module.exchangeable_tensors().items() if known.get(name) is not tensor]:
        raise UserError(
            f"{type(module).__name__} put new tensors in place of {', '.join(replaced)} during training. "
            "Change them in place (copy_, mul_), or register them with persistent=False if they are not sent."
        )


def local_metrics(updates: Sequence[ClientUpdate], by_client: bool) -> dict[str, float]:
    """Returns what was logged in local training, of each client or as mean, least and largest over all.

    >>> updates = [ClientUpdate(Client(i, 0, 1, f"c{i}"), {}, 1, {"loss": loss}) for i, loss in enumerate([1.0, 4.0])]
    >>> local_metrics(updates, by_client=True)
    {'client/c0/loss': 1.0, 'client/c1/loss': 4.0}
    >>> local_metrics(updates, by_client=False)
    {'clients/loss/mean': 2.5, 'clients/loss/min': 1.0, 'clients/loss/max': 4.0}
    """
    if by_client:
        return {f"client/{each.client.name}/{name}": value for each in updates for name, value in each.metrics.items()}
    values: dict[str, list[float]] = {}
    for update in updates:
        for name, value in update.metrics.items():
            values.setdefault(name, []).append(value)
    row: dict[str, float] = {}
    for name, found in values.items():
        mean = math.fsum(found) / len(found)
        row |= {f"clients/{name}/mean": mean, f"clients/{name}/min": min(found), f"clients/{name}/max": max(found)}
    return row
