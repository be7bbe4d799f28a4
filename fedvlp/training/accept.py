"""Which clients of a phase count: those that trained to the end and sent what can be combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedvlp.core.reductions import too_few_uploads
from fedvlp.core.run_state import RoundMetrics
from fedvlp.core.state import Client, ClientUpdate
from fedvlp.core.update_check import NOT_FINITE, TensorSpec, update_error
from fedvlp.training.client import ClientResult, OnClientFailure, Workspace
from fedvlp.training.task import PhaseTask
from fedvlp.utils.errors import UserError

KEEPS_NOT_FINITE = "keeps NaN or infinity"


@dataclass(frozen=True)
class AcceptancePolicy:
    """How many clients may fail, and what is done about those that do.

    Attributes:
        on_failure: ``skip`` leaves a client out for the rest of the round, ``retry`` first lets it train again,
            ``fail`` ends the run.
        min_clients: updates that a phase needs, at least 1; fewer end the run.
        max_update_norm: the largest norm of an update's difference to what is shared, above 0; None for any.
    """

    on_failure: OnClientFailure = "skip"
    min_clients: int = 1
    max_update_norm: float | None = None


@dataclass(frozen=True)
class Accepted:
    """The results of a phase that count.

    Attributes:
        results: of the clients that count, by ascending id.
        rejected: why the others do not, by their ids.
    """

    results: Sequence[ClientResult]
    rejected: Mapping[int, str]

    @property
    def updates(self) -> list[ClientUpdate]:
        """What the server combines."""
        return [result.update for result in self.results]


def accept(
    results: Sequence[ClientResult],
    task: PhaseTask,
    expected: Mapping[str, TensorSpec],
    policy: AcceptancePolicy,
    here: Workspace,
    metrics: RoundMetrics,
) -> Accepted:
    """Looks once at each result: did the client train, is its update of the right form, finite and not too large?

    Args:
        results: of all clients that were asked.
        task: the phase.
        expected: the spec of each tensor that the phase uploads.
        policy: how many clients may fail.
        here: whose hooks and output are told of each client that is left out.
        metrics: the round's; ``clients/failed``, ``clients/rejected`` and ``clients/retried`` are added where there
            are any.

    Raises:
        UserError: if fewer clients are left than a phase or its aggregator needs, or none may be left out.
        Exception: what a client raised, if every client failed.
    """
    rejected: dict[int, str] = {}
    for result in sorted(results, key=lambda each: each.client.id):
        client = result.client
        reason = result.failure or update_error(
            result.update, expected, task.state.server.shared, policy.max_update_norm
        )
        if not reason and not result.is_finite:
            reason = KEEPS_NOT_FINITE
        if reason:
            rejected[client.id] = reason
            _count(metrics, "clients/failed" if result.failure else "clients/rejected")
            here.fabric.print(f"round {task.round + 1}: client {_name(client)} is left out: it {reason}", flush=True)
            here.hooks.call("on_client_left_out", phase=task.phase, client=client, reason=reason)
        elif result.retried:
            _count(metrics, "clients/retried")
            line = f"client {_name(client)} trained in a second try; in the first it {result.retried}"
            here.fabric.print(f"round {task.round + 1}: {line}", flush=True)
            here.hooks.call("on_client_retried", phase=task.phase, client=client, reason=result.retried)
    _check_enough(task, results, rejected, policy, here)
    counting = [result for result in results if result.client.id not in rejected]
    _check_aggregators(task, [result.client for result in counting], here)
    return Accepted(sorted(counting, key=lambda each: each.client.id), rejected)


def _check_enough(
    task: PhaseTask,
    results: Sequence[ClientResult],
    rejected: Mapping[int, str],
    policy: AcceptancePolicy,
    here: Workspace,
) -> None:
    """Ends the run where too few clients are left, or none may be left out."""
    asked = len(results)
    if (not rejected or policy.on_failure != "fail") and asked - len(rejected) >= policy.min_clients:
        return
    if here.errors and len(rejected) == asked:
        # No client can train, which is a mistake of the method or of the data and shown unchanged.
        raise here.errors[min(here.errors)]
    where = f"Round {task.round + 1}, phase {task.phase.name!r}"
    after = "Nothing of this round counts; the last checkpoint is from before it."
    if set(rejected.values()) <= {NOT_FINITE, KEEPS_NOT_FINITE}:
        raise UserError(
            f"{where}: NaN or infinity on {len(rejected)} of {asked} clients, so training diverged. Lower the "
            f"learning rate or use precision 32-true. {after}"
        )
    first = next(iter(rejected.values()))
    raise UserError(
        f"{where}: {asked - len(rejected)} of {asked} clients could be used, and {policy.min_clients} are needed. The "
        f"first that was left out {first}. {after}"
    )


def _check_aggregators(task: PhaseTask, uploading: Sequence[Client], here: Workspace) -> None:
    """Reports where an aggregator has too few uploads, and ends the run where they are those of the whole cohort."""
    lacking = too_few_uploads(task.phase.strategy, here.data.clients, len(task.seeds), uploading)
    where = f"Round {task.round + 1}, phase {task.phase.name!r}"
    for group, problem in lacking.items():
        if not group:
            raise UserError(
                f"{where}: {problem}. Nothing of this round counts; the last checkpoint is from before it. Let more "
                "clients take part, or take another trainer.server.aggregation."
            )
        here.fabric.print(f"{where}, {group}: {problem}, so its tensors are unchanged.", flush=True)


def _count(metrics: RoundMetrics, column: str) -> None:
    metrics[column] = metrics.get(column, 0) + 1


def _name(client: Client) -> str:
    return repr(client.name or str(client.id))
