"""The secure sum of a simulation, and the options that a run with a secure sum does not support.

The simulation adds up the same fixed-point numbers as sites do, so both have equal tensors to the bit. The masks, which
cancel in the sum, are in :mod:`fedvlp.sites.secure_sum`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedvlp.core.aggregation.fixed_point import MOST_CLIENTS, decode, encode, fixed_point_error
from fedvlp.core.phases import Phase
from fedvlp.core.state import KEEPS_NOT_FINITE, State
from fedvlp.core.strategies import FedAvg, Strategy
from fedvlp.training.add_ons.base import AddOn
from fedvlp.training.options import RunOptions
from fedvlp.training.task import ClientResult
from fedvlp.utils.errors import UserError


def sum_threshold(num_clients: int) -> int:
    """How many clients each sum needs: more than half of all, so that a round can't have two sums."""
    # In a sum over two each finds the other's update: it subtracts its own.
    return max(3, num_clients // 2 + 1)


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


def summed(results: Sequence[ClientResult], strategy: Strategy) -> tuple[list[ClientResult], State]:
    """Compute the mean of all updates; a client fails if its update can't be added up."""
    (weighting,) = weightings(strategy)
    after: list[ClientResult] = []
    for result in results:
        reason = sum_error(result, weighting)
        after.append(ClientResult.of_failure(result.client, reason) if reason else result)
    added = [result for result in after if not result.failure]
    numbers = [encode(result.update.state, sum_weight(result, weighting)) for result in added]
    return after, decode(np.sum(numbers, axis=0), added[0].update.state) if added else {}


def with_secure_sum(options: RunOptions, phases: Sequence[Phase], num_clients: int) -> RunOptions:
    """Raise ``min_clients`` to what a secure sum needs, and UserError for an option that does not work with it."""
    ruled_out = {
        f"{num_clients} clients, as it has sums of 3 to {MOST_CLIENTS}": not 3 <= num_clients <= MOST_CLIENTS,
        "server.max_update_norm, since no single update can be measured": options.server.max_update_norm is not None,
        "clients.cohort_size, since sums over changing clients can be subtracted": options.clients.cohort_size
        is not None,
        "clients.stragglers, since all clients must be asked for the same": options.clients.stragglers > 0,
        "clients.on_failure retry, since a sum is over once a client fails": options.clients.on_failure == "retry",
    }
    for add_on in options.local.all_add_ons:
        server_parts = ("upload_template", "before_aggregation", "after_aggregation")
        reason = f"the add-on {type(add_on).__name__}, whose server part looks at single updates"
        ruled_out[reason] = any(getattr(type(add_on), part) is not getattr(AddOn, part) for part in server_parts)
    for phase in phases:
        for reducer in phase.strategy.reducers:
            reason = f"phase {phase.name!r}: its aggregator {type(reducer.aggregator).__name__} looks at single updates"
            ruled_out[reason] = not reducer.aggregator.is_linear
        is_one_mean = phase.strategy.reduces_cohort and weightings(phase.strategy) in ({"examples"}, {"uniform"})
        reason = f"phase {phase.name!r}: its strategy {type(phase.strategy).__name__} needs more than one weighted mean"
        ruled_out[reason] = not is_one_mean
    for reason, is_so in ruled_out.items():
        if is_so:
            raise UserError(f"trainer.server.secure_sum can't be had with {reason}. Leave one of them out.")
    min_clients = max(options.server.min_clients, sum_threshold(num_clients))
    return replace(options, server=replace(options.server, min_clients=min_clients))
