"""One communication round: sample the cohort, let each phase train it, and let the server combine what was sent."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedvlp.core.phases import RoundContext
from fedvlp.core.reductions import guarantees, most_needed_uploads
from fedvlp.core.run_state import RoundMetrics, RunState
from fedvlp.core.state import Client, ClientUpdate, ServerState
from fedvlp.core.update_check import TensorSpec, tensor_specs, upload_error
from fedvlp.runs.client_store import restored, with_stored
from fedvlp.training.accept import AcceptancePolicy, Accepted, accept
from fedvlp.training.availability import Availability
from fedvlp.training.client import ClientResult, Workspace
from fedvlp.training.cohort import sample_cohort
from fedvlp.training.engine import Engine
from fedvlp.training.task import PhaseSetup, PhaseTask
from fedvlp.utils.seeding import derive_seed, derive_seeds

DROPPED_OUT = "dropped out"
MOST_COLUMNS = 100
"""With more clients than these, metrics are given as mean, least and largest, and not client by client."""


@dataclass(frozen=True)
class Run:
    """What never changes from round to round.

    Attributes:
        here: the resident module, its data and devices.
        setups: the phases of a round, with their add-ons.
        engine: where the clients train.
        rounds: number of all rounds, which a schedule may depend on.
        cohort_size: clients of a round; None for all.
        policy: how many clients may fail.
        availability: which clients drop out or straggle.
        expected: the specs of what each phase uploads, by its place in the round, once they are known.
    """

    here: Workspace
    setups: Sequence[PhaseSetup]
    engine: Engine
    rounds: int
    cohort_size: int | None
    policy: AcceptancePolicy
    availability: Availability
    expected: dict[int, Mapping[str, TensorSpec]] = field(default_factory=dict)


def run_round(run: Run, state: RunState) -> tuple[RunState, RoundMetrics]:
    """One communication round: where the federation stands after it, and the round's metrics so far."""
    before = state
    number = state.server.round
    cohort = sample_cohort(run.here.data.clients, run.cohort_size, cohort_seed(run, number))
    run.here.hooks.call("on_round_start", phases=[setup.phase for setup in run.setups], cohort=cohort)
    metrics: RoundMetrics = {"round": number + 1}
    if run.here.local.schedule is not None:
        metrics["learning_rate_factor"] = run.here.local.factor(number, run.rounds)
    rejected = drop_out(run, cohort, number, metrics)
    present = [client for client in cohort if client.id not in rejected]
    shares_of_steps = run.availability.shares_of_steps(present, run.here.seed, number)
    for setup in run.setups:
        task = make_task(run, setup, state, cohort, shares_of_steps)
        clients = [client for client in cohort if client.id not in rejected]
        results = run.engine.train(clients, task, run.here, run.policy)
        accepted = accept(results, task, expected_upload(run, task, cohort[0]), run.policy, run.here, metrics)
        server = task.aggregate(accepted.updates)
        report_phase(run, task, server, results, metrics)
        state = after_phase(state, server, accepted)
        rejected |= accepted.rejected
    return after_round(state, before, rejected), metrics


def make_task(
    run: Run, setup: PhaseSetup, state: RunState, cohort: Sequence[Client], shares_of_steps: Mapping[int, float]
) -> PhaseTask:
    """What each client of the cohort is asked to do in a phase."""
    number = state.server.round
    ids = [client.id for client in cohort]
    seeds = derive_seeds((run.here.seed, number, setup.index), ids)
    return PhaseTask(
        setup=setup,
        state=state,
        seeds=dict(zip(ids, seeds, strict=True)),
        rounds=run.rounds,
        all_clients=lambda: run.here.data.clients,
        learning_rate_factor=run.here.local.factor(number, run.rounds),
        shares_of_steps=shares_of_steps,
    )


def expected_upload(run: Run, task: PhaseTask, client: Client) -> Mapping[str, TensorSpec]:
    """The spec of each tensor that a client has to send; the same for all clients and rounds."""
    if task.index not in run.expected:
        module = run.here.module
        module.start_client(RoundContext(task.round, task.phase, client))
        upload = module.upload_state()
        module.context = None
        if upload_error(upload):
            return {}  # each client is refused for it
        run.expected[task.index] = tensor_specs(upload | task.sent_like(task.state.server.shared))
    return run.expected[task.index]


def drop_out(run: Run, cohort: Sequence[Client], number: int, metrics: RoundMetrics) -> dict[int, str]:
    """The clients that drop out, with the reason; tells callbacks, and counts them in the metrics."""
    if not run.availability.dropout:
        return {}
    clients = run.here.data.clients
    needed = [most_needed_uploads(setup.phase.strategy, clients, len(cohort)) for setup in run.setups]
    least = max([run.policy.min_clients, *needed])
    present = {client.id for client in run.availability.present(cohort, least, run.here.seed, number)}
    absent = [client for client in cohort if client.id not in present]
    for client in absent:
        run.here.hooks.call("on_client_left_out", phase=run.setups[0].phase, client=client, reason=DROPPED_OUT)
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
    updates = [result.update for result in results if not result.failure]
    metrics |= local_metrics(updates, by_client=len(run.here.data.clients) <= MOST_COLUMNS)
    before = task.state.server
    run.here.hooks.call(
        "on_phase_end", phase=task.phase, before=before, server=server, updates=updates, download=task.download
    )


def after_phase(state: RunState, server: ServerState, accepted: Accepted) -> RunState:
    """Where the federation stands after a phase: what stays on a client is replaced where its update counted."""
    personal = {result.client.id: result.personal for result in accepted.results}
    optimizer_states = {result.client.id: result.optimizer_state for result in accepted.results}
    return replace(
        state,
        server=server,
        personal=with_stored(state.personal, personal),
        optimizer_states=with_stored(state.optimizer_states, optimizer_states),
    )


def after_round(state: RunState, before: RunState, rejected: Mapping[int, str]) -> RunState:
    """Where it stands after the round: what stays on clients that were left out is what it was before the round."""
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
