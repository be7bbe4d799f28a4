"""What every aggregator and every strategy, the server's side of a phase, must keep to."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import torch

from fedvlp.core.aggregation.base import Aggregator
from fedvlp.core.state import ClientUpdate, ServerState, State, is_finite
from fedvlp.core.strategies import Strategy
from fedvlp.testing.contract import (
    ROUNDING,
    ContractError,
    call_twice,
    difference,
    masked,
    moved,
    require,
    require_frozen,
    starting_state,
    updates_of,
)


def check_aggregator(aggregator: Aggregator) -> None:
    """Combine made-up uploads by an aggregator, and checks what every one must keep to.

    Args:
        aggregator: The aggregator, with its options.

    Raises:
        ContractError: if it does not keep to something; says to what.
    """
    name = type(aggregator).__name__
    require(isinstance(aggregator, Aggregator), f"{name} must be a subclass of Aggregator.")
    require_frozen(aggregator, name)
    try:
        json.dumps(asdict(aggregator))  # type: ignore[call-overload]  # a frozen dataclass, as was checked
    except (TypeError, ValueError) as error:
        problem = f"{name}: its options must be numbers, strings or aggregators, written into results: {error}"
        raise ContractError(problem) from error
    least = aggregator.min_clients
    require(isinstance(least, int) and least >= 1, f"{name}.min_clients must be a whole number above 0; got {least!r}.")
    # The fewest clients are where medians and trimmed means have special cases.
    for count in (least, least + 3):
        for dtype in (torch.float32, torch.float16):
            _check_combine(aggregator.bind(count, 0), name, count, dtype)
    bound = aggregator.bind(least + 3, 0)
    weights = _weights(least + 3)
    before = starting_state(torch.float64)
    states = moved(before, least + 3)
    combined = bound.combine(states, weights, before)
    change = difference(bound.combine(states[::-1], weights[::-1], before), combined, ROUNDING)
    require(not change, f"{name}.combine must not depend on the order of clients, but {change}.")
    if aggregator.is_linear:
        # Masks change every upload, but not their weighted sum.
        change = difference(bound.combine(masked(states, weights), weights, before), combined, ROUNDING)
        claim = "is_linear says that it needs only the weighted sum of the uploads, but with the same sum"
        require(not change, f"{name}.{claim} {change}. Let is_linear be false.")
    who = f"{name}.aggregate"
    before = starting_state()
    states = moved(before, least + 3)
    memory: State = {}
    # A second round starts from what the first remembered.
    for _ in range(2):
        first, again = call_twice(bound.aggregate, who, states, weights, before, memory)
        change = difference(first[0], again[0])
        require(not change, f"{who} must remember through its memory alone, but twice the same gives: {change}.")
        odd = [key for key, value in first[1].items() if not isinstance(value, torch.Tensor)]
        require(not odd, f"{who} must remember tensors, which checkpoints hold; {odd} are none.")
        before, memory = first


def _check_combine(aggregator: Aggregator, name: str, count: int, dtype: torch.dtype) -> None:
    """Check that ``combine`` is a pure function that keeps names, shapes and number formats."""
    before = starting_state(dtype)
    who = f"{name}.combine"
    combined, again = call_twice(aggregator.combine, who, moved(before, count), _weights(count), before)
    change = difference(combined, again)
    require(not change, f"{who} must give the same for the same uploads, but {change}. Draw by the seed of bind().")
    expected, kinds = _kinds(before), _kinds(combined)
    require(
        kinds == expected, f"{who} must give tensors as those sent, {expected}; of {count} uploads it gives {kinds}."
    )
    require(is_finite(combined), f"{who} makes NaN or infinity of {count} finite uploads.")


def _weights(count: int) -> Sequence[float]:
    return [3 + 2 * (index % 3) for index in range(count)]


def _kinds(state: State) -> dict[str, tuple[torch.dtype, list[int]]]:
    return {name: (value.dtype, list(value.shape)) for name, value in sorted(state.items())}


def check_strategy(
    strategy: Strategy, shared: State | None = None, updates: Sequence[ClientUpdate] | None = None
) -> None:
    """Let a strategy combine uploads, and checks what every strategy must keep to.

    Args:
        strategy: The strategy, with its options.
        shared: What the server starts from; two made-up tensors if not given.
        updates: What clients send, in the order of their ids; if not given, of four clients of two domains, each with
            all shared tensors.

    Raises:
        ContractError: if it does not keep to something; says to what.
        UserError: if its ``check`` refuses the clients. Then give updates of others.
    """
    name = type(strategy).__name__
    require(isinstance(strategy, Strategy), f"{name} must have the methods broadcast, aggregate and check.")
    require_frozen(strategy, name)
    server = ServerState.start(starting_state() if shared is None else shared)
    sent = updates_of(server.shared) if updates is None else list(updates)
    strategy.check([update.client for update in sent])
    who = f"{name}.broadcast"
    for update in sent:
        download, again = call_twice(strategy.broadcast, who, server, update.client)
        odd = [key for key, value in download.items() if not isinstance(value, torch.Tensor)]
        require(not odd, f"{who} must give tensors; {odd} are none.")
        change = difference(download, again)
        require(not change, f"{who} must give the same for the same server and client, but {change}.")
    # All clients, without the first, and one alone.
    for cohort in (sent, sent[1:], sent[:1]):
        _check_aggregate(strategy, name, server, cohort)
    change = difference(strategy.aggregate(server, []).shared, server.shared, ROUNDING)
    require(not change, f"{name}.aggregate must change nothing that is shared where no client sent, but {change}.")


def _check_aggregate(strategy: Strategy, name: str, server: ServerState, sent: Sequence[ClientUpdate]) -> None:
    """Check that ``aggregate`` is a pure function to a server state of the same tensors."""
    who = f"{name}.aggregate, of {len(sent)} clients,"
    after, again = call_twice(strategy.aggregate, who, server, list(sent))
    require(isinstance(after, ServerState), f"{who} must return a ServerState; it returns {type(after).__name__}.")
    for part in ("shared", "deployed", "memory"):
        change = difference(getattr(after, part), getattr(again, part))
        require(not change, f"{who} must give the same for the same updates, but in {part} {change}.")
        for key, value in getattr(after, part).items():
            where = f"{who} in {part} {key!r}"
            require(isinstance(value, torch.Tensor), f"{where} must be a tensor, which checkpoints hold.")
            require(not value.requires_grad, f"{where} must not keep a gradient: detach it.")
            require(is_finite({key: value}), f"{where} is NaN or infinite, though all uploads are finite.")
    expected, kinds = _kinds(server.shared), _kinds(after.shared)
    odd = sorted(key for key in expected | kinds if expected.get(key) != kinds.get(key))
    require(not odd, f"{who} must keep names, shapes and formats of what is shared; {odd} became others.")
    extra = sorted(after.deployed.keys() - after.shared.keys())
    require(not extra, f"{who} may deploy what is shared; {extra} is not.")
    require(after.round == server.round, f"{who} must leave round unchanged: the federation counts.")
