"""The secure sum of a simulation, and the options that a run with a secure sum does not support.

The simulation adds the same fixed-point numbers as sites, so both give bit-identical tensors. The masks, which cancel
in the sum, are in :mod:`fedvlp.sites.secure_sum`.
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
    """Compute the number of clients that a sum needs: more than half, so that a round can't have two sums."""
    # In a sum over two clients, each client could subtract its own update from the sum.
    return max(3, num_clients // 2 + 1)


def weightings(strategy: Strategy) -> set[str]:
    """Collect the weightings of a strategy's averages, ``examples`` or ``uniform``. A secure sum supports only one."""
    return {reducer.weighting if isinstance(reducer, FedAvg) else "otherwise" for reducer in strategy.reducers}


def sum_weight(result: ClientResult, weighting: str) -> int:
    """Get a client's weight in a sum: its number of images, or 1."""
    return result.update.num_examples if weighting == "examples" else 1


def sum_error(result: ClientResult, weighting: str) -> str:
    """Explain why a client's result can't be added to the sum; an empty string if it can."""
    if result.failure or not result.is_finite:
        return result.failure or KEEPS_NOT_FINITE
    return fixed_point_error(result.update.state, sum_weight(result, weighting))


def sum_results(results: Sequence[ClientResult], strategy: Strategy) -> tuple[list[ClientResult], State]:
    """Compute the mean of all updates. A client fails if its update can't be added."""
    (weighting,) = weightings(strategy)
    after: list[ClientResult] = []
    for result in results:
        reason = sum_error(result, weighting)
        after.append(ClientResult.from_failure(result.client, reason) if reason else result)
    added = [result for result in after if not result.failure]
    numbers = [encode(result.update.state, sum_weight(result, weighting)) for result in added]
    return after, decode(np.sum(numbers, axis=0), added[0].update.state) if added else {}


def require_secure_sum(options: RunOptions, phases: Sequence[Phase], num_clients: int) -> RunOptions:
    """Raise ``min_clients`` to the threshold of a secure sum; raise UserError for options that do not work with it."""
    unsupported = {
        f"{num_clients} clients, but only 3 to {MOST_CLIENTS}": not 3 <= num_clients <= MOST_CLIENTS,
        "server.max_update_norm, because single updates are hidden": options.server.max_update_norm is not None,
        "clients.cohort_size, because sums over different cohorts could be subtracted": options.clients.cohort_size
        is not None,
        "clients.stragglers, because all clients must get the same task": options.clients.stragglers > 0,
        "clients.on_failure retry, because a failed client can't rejoin a sum": options.clients.on_failure == "retry",
    }
    for add_on in options.local.all_add_ons:
        server_parts = ("upload_template", "before_aggregation", "after_aggregation")
        reason = f"the add-on {type(add_on).__name__}, which reads single updates on the server"
        unsupported[reason] = any(getattr(type(add_on), part) is not getattr(AddOn, part) for part in server_parts)
    for phase in phases:
        for reducer in phase.strategy.reducers:
            reason = f"phase {phase.name!r}, because {type(reducer.aggregator).__name__} reads single updates"
            unsupported[reason] = not reducer.aggregator.is_linear
        is_one_mean = phase.strategy.reduces_cohort and weightings(phase.strategy) in ({"examples"}, {"uniform"})
        reason = f"phase {phase.name!r}, because {type(phase.strategy).__name__} needs more than one weighted mean"
        unsupported[reason] = not is_one_mean
    for reason, is_used in unsupported.items():
        if is_used:
            raise UserError(f"trainer.server.secure_sum does not support {reason}. Remove one of them.")
    min_clients = max(options.server.min_clients, sum_threshold(num_clients))
    return replace(options, server=replace(options.server, min_clients=min_clients))
