"""What a secure sum leaves of a federation: one mean in place of all updates, and what a run with it can't have.

The simulation adds up the same fixed-point numbers as sites do, so both have equal tensors to the bit; the masks, which
cancel in the sum, are in :mod:`fedvlp.sites.secure_sum`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedvlp.core.aggregation.base import OuterAggregator
from fedvlp.core.aggregation.fixed_point import MOST_CLIENTS, fixed_point_error, fixed_point_mean
from fedvlp.core.phases import Phase, one_by_one
from fedvlp.core.state import State
from fedvlp.core.strategies import FedAvg, Strategy
from fedvlp.training.add_ons.base import AddOn
from fedvlp.training.client import KEEPS_NOT_FINITE, ClientResult
from fedvlp.training.options import ConfiguredRun, Server
from fedvlp.utils.errors import UserError

FEWEST_CLIENTS = 3
"""In a sum over two each finds the other's update: it subtracts its own."""
SERVER_PARTS = ("sent_like", "before_aggregation", "aggregator")
"""Hooks of an add-on with which the server makes something of single updates."""


def sum_threshold(num_clients: int) -> int:
    """How many clients each sum needs: more than half of all, so that a round can't have two sums."""
    return max(FEWEST_CLIENTS, num_clients // 2 + 1)


def weightings(strategy: Strategy) -> set[str]:
    """In which ways a strategy's averages weigh clients, ``examples`` or ``uniform``; with a secure sum it is one."""
    return {reducer.weighting if isinstance(reducer, FedAvg) else "otherwise" for reducer in strategy.reducers}


def sum_weight(result: ClientResult, weighting: str) -> int:
    """How much a client counts in a sum: its images, or 1."""
    return result.update.num_examples if weighting == "examples" else 1


def sum_error(result: ClientResult, weighting: str) -> str:
    """Why what a client's training left can't be added up; an empty string if it can."""
    if result.failure or not result.is_finite:
        return result.failure or KEEPS_NOT_FINITE
    return fixed_point_error(result.update.state, sum_weight(result, weighting))


def with_mean(result: ClientResult, mean: State) -> ClientResult:
    """A client's result as the server has it: with the mean of all as its update, and nothing that it logged."""
    return replace(result, update=replace(result.update, state=mean, metrics={}))


def summed(results: Sequence[ClientResult], strategy: Strategy) -> list[ClientResult]:
    """The results with the mean of all updates in place of each; whose update can't be added up has failed."""
    (weighting,) = weightings(strategy)
    problems = {result.client.id: sum_error(result, weighting) for result in results}
    added = [result for result in results if not problems[result.client.id]]
    weights = [sum_weight(result, weighting) for result in added]
    mean = fixed_point_mean([result.update.state for result in added], weights) if added else {}
    after: list[ClientResult] = []
    for result in results:
        if reason := problems[result.client.id]:
            after.append(ClientResult.of_failure(result.client, reason))
        else:
            after.append(with_mean(result, mean))
    return after


def with_secure_sum(run: ConfiguredRun, phases: Sequence[Phase], num_clients: int) -> Server:
    """The server's options of a run with a secure sum, for which ``min_clients`` is at least what a sum needs.

    Raises:
        UserError: for what a run can't have in which the server sees sums alone.
    """
    if not FEWEST_CLIENTS <= num_clients <= MOST_CLIENTS:
        _refuse(f"has sums of {FEWEST_CLIENTS} to {MOST_CLIENTS} clients, and there are {num_clients}. Leave it out.")
    ruled_out = {
        "server.max_update_norm, since no single update can be measured": run.server.max_update_norm is not None,
        "clients.cohort_size, since sums over changing clients can be subtracted": run.clients.cohort_size is not None,
        "clients.stragglers, since all clients must be asked for the same": run.clients.stragglers > 0,
        "clients.on_failure retry, since a sum is over once a client fails": run.clients.on_failure == "retry",
    }
    for add_on in run.local.every_add_on:
        reason = f"the add-on {type(add_on).__name__}, whose server part looks at single updates"
        ruled_out[reason] = any(getattr(type(add_on), part) is not getattr(AddOn, part) for part in SERVER_PARTS)
    for phase in phases:
        if reason := _not_a_sum(phase.strategy):
            ruled_out[f"phase {phase.name!r}: {reason}"] = True
    for reason, is_given in ruled_out.items():
        if is_given:
            _refuse(f"can't be had with {reason}. Leave one of them out.")
    return replace(run.server, min_clients=max(run.server.min_clients, sum_threshold(num_clients)))


def _not_a_sum(strategy: Strategy) -> str:
    """Why a weighted sum is not all that a strategy needs; an empty string if it is."""
    if reason := one_by_one(strategy):
        return reason
    for reducer in strategy.reducers:
        aggregator = reducer.aggregator
        while isinstance(aggregator, OuterAggregator) and not aggregator.inner.is_linear:
            aggregator = aggregator.inner
        if not aggregator.is_linear:
            return f"its aggregator {type(aggregator).__name__} looks at single updates"
    ways = weightings(strategy)
    if len(ways) != 1 or "otherwise" in ways:
        return f"its strategy {type(strategy).__name__} has not one weighted mean"
    return ""


def _refuse(reason: str) -> None:
    raise UserError(f"trainer.server.secure_sum {reason}")
