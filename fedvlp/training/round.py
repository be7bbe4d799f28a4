"""One communication round: sample the cohort, train it in each phase, and aggregate the updates."""

import math
import secrets
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace

from fedvlp.core.phases import RoundContext, most_needed_uploads, privacy_guarantees, too_few_uploads
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
from fedvlp.runs.client_store import reset_states, update_states
from fedvlp.runs.descriptions import describe_optimizer
from fedvlp.training.client import Workspace
from fedvlp.training.cohort import draw_step_shares, present_clients, sample_cohort
from fedvlp.training.engine import Engine, PhaseResults
from fedvlp.training.lightning_hooks import Hooks
from fedvlp.training.task import ClientResult, PhaseTask
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed

DROPPED_OUT = "dropped out"
ROUND_UNDONE = "This round changes nothing; the last checkpoint is from the round before."
# With more clients, metrics are summarized as mean, minimum and maximum instead of listed per client.
MOST_COLUMNS = 100


Steps = Generator[tuple[list[Client], PhaseTask], PhaseResults, tuple[RunState, RoundMetrics]]
"""Yields the clients and the task of each phase, and receives their results. Returns the new state and the metrics."""


def run_round(workspace: Workspace, engine: Engine, state: RunState) -> tuple[RunState, RoundMetrics]:
    """Run one communication round; return the federation's new state and the round's metrics so far."""
    steps = round_steps(workspace, state)
    clients, task = next(steps)
    while True:
        results = engine.train(clients, task, workspace)
        try:
            clients, task = steps.send(results)
        except StopIteration as end:
            return end.value


def first_step(workspace: Workspace, state: RunState) -> tuple[list[Client], PhaseTask]:
    """Find the clients and the task of a round's first phase, without running the round or calling its hooks."""
    return next(round_steps(replace(workspace, hooks=Hooks([])), state))


def round_steps(workspace: Workspace, state: RunState) -> Steps:
    """Sample the cohort, and accept and aggregate the results of each phase."""
    # A client that fails in a later phase gets back its personal tensors from before the first phase.
    before = state
    number = state.server.round
    options = workspace.options
    cohort = sample_cohort(workspace.data.clients, options.clients.cohort_size, cohort_seed(workspace, number))
    workspace.hooks.call("on_round_start", workspace.phases, cohort)
    metrics: RoundMetrics = {"round": number + 1}
    settings = describe_optimizer(workspace.module) or {}
    factor = options.local.factor(number, options.rounds, settings.get("lr"))
    if options.local.schedule is not None:
        metrics["learning_rate_factor"] = factor
    # Sampled before training, so dropped clients cost no time.
    rejected = drop_out(workspace, cohort, number, metrics)
    present = [client for client in cohort if client.id not in rejected]
    round_settings = {
        "rounds": options.rounds,
        # Evaluated lazily: a site reports its number of images only when it joins.
        "all_clients": lambda: workspace.data.clients,
        "learning_rate_factor": factor,
        "step_shares": draw_step_shares(present, options.clients.stragglers, options.seed, number),
    }
    for index in range(len(workspace.phases)):
        # For the whole cohort, because check_aggregators takes its size from the seeds.
        seeds = {client.id: derive_seed(options.seed, number, index, client.id) for client in cohort}
        task = PhaseTask.from_phase(
            workspace.module, workspace.phases, index, workspace.add_ons, state=state, seeds=seeds, **round_settings
        )
        clients = [client for client in cohort if client.id not in rejected]
        results = yield clients, task
        # A lost round restores the state from before it, but counts.
        if is_lost(workspace, state, results):
            for result in results.clients:
                report_client(workspace, task, result, result.failure, metrics)
            workspace.fabric.print(f"round {number + 1} is lost: it changes nothing and can't be repeated", flush=True)
            return after_round(before, before, ()), {**metrics, "lost": 1}
        accepted, reasons = accept(workspace, results.clients, task, metrics)
        server = task.aggregate(results.updates(accepted))
        # Including rejected updates, so that the metrics show diverged clients.
        updates = [result.update for result in results.clients if not result.failure]
        metrics |= local_metrics(updates, by_client=len(workspace.data.clients) <= MOST_COLUMNS)
        workspace.hooks.call("on_phase_end", task, server, updates)
        state = after_phase(state, server, accepted)
        # A client rejected in one phase skips the remaining phases, so its phases stay consistent.
        rejected |= reasons
    return after_round(state, before, rejected), metrics


def is_lost(workspace: Workspace, state: RunState, results: PhaseResults) -> bool:
    """Whether every client failed in a round that can't be repeated, so that the run continues with the next round."""
    all_failed = all(result.failure for result in results.clients)
    # A second lost round in a row ends the run, since a persistent fault would lead to a finished run without training.
    # Losses before a resume do not count: sites that took part in the round can't repeat it.
    lost_before = state.server.round > workspace.first_round and "lost" in state.history[-1]
    return results.is_final and all_failed and not lost_before and workspace.options.clients.on_failure != "fail"


def accept(
    workspace: Workspace, results: Sequence[ClientResult], task: PhaseTask, metrics: RoundMetrics
) -> tuple[list[ClientResult], dict[int, str]]:
    """Split results into accepted ones, sorted by client id, and the reasons for rejecting the others, by client id.

    Rejected clients are reported to output, callbacks and metrics. Raises UserError if too few clients are left for the
    phase or its aggregator, or one was rejected with ``on_failure`` ``fail``; the first error if all clients failed.
    """
    options, shared = workspace.options, task.state.server.shared
    expected = expected_upload(workspace, task, results[0].client)
    accepted: list[ClientResult] = []
    rejected: dict[int, str] = {}
    # Sorted by id, because floating-point sums depend on the order and processes and sites answer in any order.
    for result in sorted(results, key=lambda result: result.client.id):
        reason = result.failure or update_error(result.update, expected, shared, options.server.max_update_norm)
        # Personal tensors that are not finite would spoil the next rounds, even if the upload is finite.
        if not reason and not result.is_finite:
            reason = KEEPS_NOT_FINITE
        if reason:
            rejected[result.client.id] = reason
        else:
            accepted.append(result)
        report_client(workspace, task, result, reason, metrics)
    if len(accepted) < options.server.min_clients or (rejected and options.clients.on_failure == "fail"):
        raise rejection_error(workspace, task, len(results), rejected)
    check_aggregators(workspace, task, [result.client for result in accepted])
    return accepted, rejected


def report_client(
    workspace: Workspace, task: PhaseTask, result: ClientResult, reason: str, metrics: RoundMetrics
) -> None:
    """Report a rejected or retried client to output, callbacks and metrics."""
    client = result.client
    name = repr(client.name or str(client.id))
    if reason:
        column = "clients/failed" if result.failure else "clients/rejected"
        line = f"client {name} is skipped: it {reason}"
    elif result.retried:
        column = "clients/retried"
        line = f"client {name} succeeded on retry; at first it {result.retried}"
    else:
        return
    metrics[column] = metrics.get(column, 0) + 1
    workspace.fabric.print(f"round {task.round + 1}: {line}", flush=True)
    workspace.hooks.call("on_client_problem", task.phase, client, reason or result.retried, bool(reason))


def rejection_error(workspace: Workspace, task: PhaseTask, total: int, rejected: Mapping[int, str]) -> Exception:
    """Explain why the run can't continue without the rejected clients."""
    errors = workspace.errors
    if errors and len(rejected) == total:
        # An error on every client is an error of the method or the data, so it is raised unchanged.
        return errors[min(errors)]
    where = f"Round {task.round + 1}, phase {task.phase.name!r}"
    # NaN on every rejected client points to the learning rate rather than to the clients.
    if set(rejected.values()) <= {NOT_FINITE, KEEPS_NOT_FINITE}:
        return UserError(
            f"{where}: NaN or infinity on {len(rejected)} of {total} clients, so training diverged. Lower the "
            f"learning rate or use precision 32-true. {ROUND_UNDONE}"
        )
    return UserError(
        f"{where}: the updates of {total - len(rejected)} of {total} clients are usable, and "
        f"{workspace.options.server.min_clients} are needed. The first rejected client "
        f"{next(iter(rejected.values()))}. {ROUND_UNDONE}"
    )


def check_aggregators(workspace: Workspace, task: PhaseTask, uploading: Sequence[Client]) -> None:
    """Report groups with too few uploads for an aggregator; raise UserError if the whole cohort has too few."""
    lacking = too_few_uploads(task.phase.strategy, workspace.data.clients, len(task.seeds), uploading)
    where = f"Round {task.round + 1}, phase {task.phase.name!r}"
    for group, problem in lacking.items():
        if not group:
            raise UserError(f"{where}: {problem}. {ROUND_UNDONE} Use more clients, or another server.aggregation.")
        workspace.fabric.print(f"{where}, {group}: {problem}. Its tensors are unchanged.", flush=True)


def expected_upload(workspace: Workspace, task: PhaseTask, client: Client) -> Mapping[str, TensorSpec]:
    """Describe the tensors that every client must upload in a phase."""
    module = workspace.module
    # The upload depends on the phase, so the module enters the phase briefly.
    module.start_client(RoundContext(task.round, task.phase, client))
    upload = module.upload_state()
    module.context = None
    if upload_error(upload):
        return {}  # accept() rejects every client for the same error
    return tensor_specs(upload | task.upload_template(task.state.server.shared))


def drop_out(workspace: Workspace, cohort: Sequence[Client], number: int, metrics: RoundMetrics) -> dict[int, str]:
    """Sample the clients that drop out, with the reason, and report them to callbacks and metrics."""
    options = workspace.options
    if not options.clients.dropout:
        return {}
    clients = workspace.data.clients
    needed = [most_needed_uploads(phase.strategy, clients, len(cohort)) for phase in workspace.phases]
    # With fewer clients the run would end, and a study of dropout would show nothing.
    minimum = max([options.server.min_clients, *needed])
    present = set(present_clients(cohort, options.clients.dropout, minimum, options.seed, number))
    absent = [client for client in cohort if client not in present]
    for client in absent:
        workspace.hooks.call("on_client_problem", workspace.phases[0], client, DROPPED_OUT, True)
    metrics["clients/dropped_out"] = len(absent)
    return {client.id: DROPPED_OUT for client in absent}


def cohort_seed(workspace: Workspace, number: int) -> int:
    """Make the seed for sampling a round's clients; it is secret if the noise is secret."""
    # Anyone who knows the run's seed could derive the cohort from it.
    if any(not guarantee.repeats for guarantee in privacy_guarantees(workspace.phases)):
        return secrets.randbits(63)
    return derive_seed(workspace.options.seed, number)


def after_phase(state: RunState, server: ServerState, accepted: Sequence[ClientResult]) -> RunState:
    """Make the state after a phase, with the new personal tensors of accepted clients."""
    personal = {result.client.id: result.personal for result in accepted}
    optimizer_states = {result.client.id: result.optimizer_state for result in accepted}
    return replace(
        state,
        server=server,
        personal=update_states(state.personal, personal),
        optimizer_states=update_states(state.optimizer_states, optimizer_states),
    )


def after_round(state: RunState, before: RunState, rejected: Iterable[int]) -> RunState:
    """Make the state after the round. Rejected clients get back their personal tensors from before it."""
    return replace(
        state,
        personal=reset_states(state.personal, before.personal, rejected),
        optimizer_states=reset_states(state.optimizer_states, before.optimizer_states, rejected),
        server=replace(state.server, round=state.server.round + 1),
    )


def local_metrics(updates: Sequence[ClientUpdate], by_client: bool) -> dict[str, float]:
    """Collect the values logged in local training, per client or as mean, minimum and maximum over clients.

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
            if by_client:
                metrics[f"client/{update.client.name}/{name}"] = value
            else:
                by_name.setdefault(name, []).append(value)
    for name, values in by_name.items():
        metrics[f"clients/{name}/mean"] = math.fsum(values) / len(values)
        metrics[f"clients/{name}/min"] = min(values)
        metrics[f"clients/{name}/max"] = max(values)
    return metrics
