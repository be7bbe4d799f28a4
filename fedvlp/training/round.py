"""One communication round: sample the cohort, let each phase train it, and let the server combine what was sent."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedvlp.core.phases import RoundContext, guarantees, most_needed_uploads, too_few_uploads
from fedvlp.core.state import (
    KEEPS_NOT_FINITE,
    NOT_FINITE,
    Client,
    ClientUpdate,
    RoundMetrics,
    RunState,
    ServerState,
    TensorSpec,
    tensor_specs,
    update_error,
    upload_error,
)
from fedvlp.runs.client_store import restored, with_stored
from fedvlp.runs.descriptions import describe_optimizer
from fedvlp.training.client import ClientResult, Workspace
from fedvlp.training.cohort import present_clients, sample_cohort, shares_of_steps
from fedvlp.training.engine import Engine, PhaseResults
from fedvlp.training.options import Clients, Server
from fedvlp.training.task import PhaseSetup, PhaseTask
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed

DROPPED_OUT = "dropped out"
NOTHING_COUNTS = "Nothing of this round counts; the last checkpoint is from before it."
# With more clients than these, metrics are given as mean, least and largest, and not client by client.
MOST_COLUMNS = 100


@dataclass(frozen=True)
class Run:
    """What never changes from round to round.

    Attributes:
        here: the resident module, its data and devices.
        setups: the phases of a round, with their add-ons.
        engine: where the clients train.
        rounds: number of all rounds, which a schedule may depend on.
        server: which updates count, and how many are needed.
        clients: how many take part, drop out, straggle or may fail.
        expected: the specs of what each phase uploads, by its place in the round, once they are known.
        lost: numbers of the rounds that were lost since the last round that counts.
    """

    here: Workspace
    setups: Sequence[PhaseSetup]
    engine: Engine
    rounds: int
    server: Server
    clients: Clients
    expected: dict[int, Mapping[str, TensorSpec]] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)

    def learning_rate_factor(self, round: int) -> float:
        """What the schedule multiplies the learning rates with after so many finished rounds."""
        settings = describe_optimizer(self.here.module) or {}
        return self.here.local.factor(round, self.rounds, settings.get("lr"))


def run_round(run: Run, state: RunState) -> tuple[RunState, RoundMetrics]:
    """One communication round: the federation's state after it, and the round's metrics so far."""
    # A client that fails in a later phase gets back what it kept before the first.
    before = state
    number = state.server.round
    cohort = sample_cohort(run.here.data.clients, run.clients.cohort_size, cohort_seed(run, number))
    run.here.hooks.call("on_round_start", [setup.phase for setup in run.setups], cohort)
    metrics: RoundMetrics = {"round": number + 1}
    if run.here.local.schedule is not None:
        metrics["learning_rate_factor"] = run.learning_rate_factor(number)
    # Drawn before anything is trained: who drops out costs no time and sees no phase.
    rejected = drop_out(run, cohort, number, metrics)
    present = [client for client in cohort if client.id not in rejected]
    step_shares = shares_of_steps(present, run.clients.stragglers, run.here.seed, number)
    for setup in run.setups:
        task = make_task(run, setup, state, cohort, step_shares)
        clients = [client for client in cohort if client.id not in rejected]
        results = run.engine.train(clients, task, run.here)
        if is_lost(run, results):
            return lose_round(run, task, before, results.clients, metrics)
        accepted, reasons = accept(run, results.clients, task, metrics)
        server = task.aggregate(results.updates(accepted))
        report_phase(run, task, server, results.clients, metrics)
        state = after_phase(state, server, accepted)
        # Left out of one phase is left out of the round, so that no client's phases fall apart.
        rejected |= reasons
    run.lost.clear()
    return after_round(state, before, rejected), metrics


def is_lost(run: Run, results: PhaseResults) -> bool:
    """Whether no client can be used and some can't repeat the round, so that the run continues with the next round."""
    all_failed = all(result.failure for result in results.clients)
    # A fault that persists would end in a finished run in which nothing was trained, so a second loss ends the run.
    return results.is_final and all_failed and not run.lost and run.clients.on_failure != "fail"


def lose_round(
    run: Run, task: PhaseTask, before: RunState, results: Iterable[ClientResult], metrics: RoundMetrics
) -> tuple[RunState, RoundMetrics]:
    """Record a round as lost: the state is the one before the round, except that the round is counted."""
    for result in results:
        report_client(run, task, result, result.failure, metrics)
    run.here.fabric.print(f"round {task.round + 1} is lost: it changes nothing, and can't be repeated", flush=True)
    run.lost.append(task.round)
    return after_round(before, before, ()), {**metrics, "lost": 1}


def make_task(
    run: Run, setup: PhaseSetup, state: RunState, cohort: Sequence[Client], step_shares: Mapping[int, float]
) -> PhaseTask:
    """What each client of the cohort is asked to do in a phase."""
    number = state.server.round
    # Of the whole cohort, so that a seed does not depend on who was left out before.
    seeds = {client.id: derive_seed(run.here.seed, number, setup.index, client.id) for client in cohort}
    return PhaseTask(
        setup=setup,
        state=state,
        seeds=seeds,
        rounds=run.rounds,
        # Asked for late, since sites say only as they join how many images they have.
        all_clients=lambda: run.here.data.clients,
        learning_rate_factor=run.learning_rate_factor(number),
        shares_of_steps=step_shares,
    )


def accept(
    run: Run, results: Sequence[ClientResult], task: PhaseTask, metrics: RoundMetrics
) -> tuple[list[ClientResult], dict[int, str]]:
    """The results that count, by ascending id, and why the others do not, by their clients' ids.

    Looks once at each: did the client train, is its update of the right form, finite and not too large? Output,
    callbacks and metrics receive each that is left out.

    Raises:
        UserError: if fewer clients are left than a phase or its aggregator needs, or none may be left out.
        Exception: what a client raised, if every client failed.
    """
    expected = expected_upload(run, task, results[0].client)
    accepted: list[ClientResult] = []
    rejected: dict[int, str] = {}
    # In the order of ids: sums in floating point depend on it, and processes and sites answer in any.
    for result in sorted(results, key=lambda each: each.client.id):
        reason = result.failure or update_error(
            result.update, expected, task.state.server.shared, run.server.max_update_norm
        )
        # An upload may be finite where personal tensors are not, which would spoil the next rounds.
        if not reason and not result.is_finite:
            reason = KEEPS_NOT_FINITE
        if reason:
            rejected[result.client.id] = reason
        else:
            accepted.append(result)
        report_client(run, task, result, reason, metrics)
    check_enough(run, task, len(results), rejected)
    check_aggregators(run, task, [result.client for result in accepted])
    return accepted, rejected


def report_client(run: Run, task: PhaseTask, result: ClientResult, reason: str, metrics: RoundMetrics) -> None:
    """Tells output, callbacks and metrics of a client that is left out for a reason, or trained in a second try."""
    client = result.client
    name = repr(client.name or str(client.id))
    if reason:
        column = "clients/failed" if result.failure else "clients/rejected"
        line = f"client {name} is left out: it {reason}"
    elif result.retried:
        column = "clients/retried"
        line = f"client {name} trained in a second try; in the first it {result.retried}"
    else:
        return
    metrics[column] = metrics.get(column, 0) + 1
    run.here.fabric.print(f"round {task.round + 1}: {line}", flush=True)
    run.here.hooks.call("on_client_problem", task.phase, client, reason or result.retried, bool(reason))


def check_enough(run: Run, task: PhaseTask, asked: int, rejected: Mapping[int, str]) -> None:
    """Ends the run where too few clients are left, or none may be left out."""
    left = asked - len(rejected)
    if (not rejected or run.clients.on_failure != "fail") and left >= run.server.min_clients:
        return
    errors = run.here.errors
    if errors and not left:
        # No client can train, which is a mistake of the method or of the data and shown unchanged.
        raise errors[min(errors)]
    where = f"Round {task.round + 1}, phase {task.phase.name!r}"
    # Every client diverged, which is no failure of clients but of the learning rate.
    if set(rejected.values()) <= {NOT_FINITE, KEEPS_NOT_FINITE}:
        raise UserError(
            f"{where}: NaN or infinity on {len(rejected)} of {asked} clients, so training diverged. Lower the "
            f"learning rate or use precision 32-true. {NOTHING_COUNTS}"
        )
    first = next(iter(rejected.values()))
    raise UserError(
        f"{where}: {left} of {asked} clients could be used, and {run.server.min_clients} are needed. The first that "
        f"was left out {first}. {NOTHING_COUNTS}"
    )


def check_aggregators(run: Run, task: PhaseTask, uploading: Sequence[Client]) -> None:
    """Reports where an aggregator has too few uploads, and ends the run where they are those of the whole cohort."""
    lacking = too_few_uploads(task.phase.strategy, run.here.data.clients, len(task.seeds), uploading)
    where = f"Round {task.round + 1}, phase {task.phase.name!r}"
    for group, problem in lacking.items():
        if not group:
            raise UserError(
                f"{where}: {problem}. {NOTHING_COUNTS} Let more clients take part, or take another "
                "trainer.server.aggregation."
            )
        run.here.fabric.print(f"{where}, {group}: {problem}, so its tensors are unchanged.", flush=True)


def expected_upload(run: Run, task: PhaseTask, client: Client) -> Mapping[str, TensorSpec]:
    """The spec of each tensor that a client has to send; the same for all clients and rounds."""
    if task.index not in run.expected:
        module = run.here.module
        # What is uploaded depends on the phase, so the module is put into it for a moment.
        module.start_client(RoundContext(task.round, task.phase, client))
        upload = module.upload_state()
        module.context = None
        if upload_error(upload):
            return {}  # each client is refused for it
        run.expected[task.index] = tensor_specs(upload | task.sent_like(task.state.server.shared))
    return run.expected[task.index]


def drop_out(run: Run, cohort: Sequence[Client], number: int, metrics: RoundMetrics) -> dict[int, str]:
    """The clients that drop out, with the reason; tells callbacks, and counts them in the metrics."""
    if not run.clients.dropout:
        return {}
    clients = run.here.data.clients
    needed = [most_needed_uploads(setup.phase.strategy, clients, len(cohort)) for setup in run.setups]
    # Fewer would end the run, which is not what a study of drop-out is to show.
    least = max([run.server.min_clients, *needed])
    present = set(present_clients(cohort, run.clients.dropout, least, run.here.seed, number))
    absent = [client for client in cohort if client not in present]
    for client in absent:
        run.here.hooks.call("on_client_problem", run.setups[0].phase, client, DROPPED_OUT, True)
    metrics["clients/dropped_out"] = len(absent)
    return {client.id: DROPPED_OUT for client in absent}


def cohort_seed(run: Run, number: int) -> int:
    """The seed by which a round's clients are drawn; a secret one where the noise is secret."""
    # A cohort that follows from the run's seed hides no client from who knows that.
    phases = [setup.phase for setup in run.setups]
    if any(not guarantee.repeats for guarantee in guarantees(phases)):
        return secrets.randbits(63)
    return derive_seed(run.here.seed, number)


def report_phase(
    run: Run, task: PhaseTask, server: ServerState, results: Iterable[ClientResult], metrics: RoundMetrics
) -> None:
    """Adds what clients logged to the metrics, and calls the callbacks."""
    # Also those that were rejected: what diverged is worth a look.
    updates = [result.update for result in results if not result.failure]
    metrics |= local_metrics(updates, by_client=len(run.here.data.clients) <= MOST_COLUMNS)
    before = task.state.server
    run.here.hooks.call("on_phase_end", task.phase, before, server, updates, task.download)


def after_phase(state: RunState, server: ServerState, accepted: Sequence[ClientResult]) -> RunState:
    """The federation's state after a phase: a client's personal tensors are replaced where its update counted."""
    personal = {result.client.id: result.personal for result in accepted}
    optimizer_states = {result.client.id: result.optimizer_state for result in accepted}
    return replace(
        state,
        server=server,
        personal=with_stored(state.personal, personal),
        optimizer_states=with_stored(state.optimizer_states, optimizer_states),
    )


def after_round(state: RunState, before: RunState, rejected: Iterable[int]) -> RunState:
    """The state after the round: personal tensors of clients that were left out are those from before the round."""
    return replace(
        state,
        personal=restored(state.personal, before.personal, rejected),
        optimizer_states=restored(state.optimizer_states, before.optimizer_states, rejected),
        server=replace(state.server, round=state.server.round + 1),
    )


def local_metrics(updates: Sequence[ClientUpdate], by_client: bool) -> dict[str, float]:
    """What was logged in local training, of each client or as mean, least and largest over all.

    >>> updates = [ClientUpdate(Client(i, 0, 1, f"c{i}"), {}, 1, {"loss": loss}) for i, loss in enumerate([1.0, 4.0])]
    >>> local_metrics(updates, by_client=True)
    {'client/c0/loss': 1.0, 'client/c1/loss': 4.0}
    >>> local_metrics(updates, by_client=False)
    {'clients/loss/mean': 2.5, 'clients/loss/min': 1.0, 'clients/loss/max': 4.0}
    """
    by_name: dict[str, list[float]] = {}
    metrics: dict[str, float] = {}
    for update in updates:
        for name, value in update.metrics.items():
            by_name.setdefault(name, []).append(value)
            if by_client:
                metrics[f"client/{update.client.name}/{name}"] = value
    if by_client:
        return metrics
    for name, values in by_name.items():
        metrics[f"clients/{name}/mean"] = math.fsum(values) / len(values)
        metrics[f"clients/{name}/min"] = min(values)
        metrics[f"clients/{name}/max"] = max(values)
    return metrics
