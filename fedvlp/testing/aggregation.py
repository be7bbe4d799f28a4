"""The contracts of aggregators and strategies, the server's side of a phase."""

import copy
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import torch

from fedvlp.core.aggregation.base import Aggregator
from fedvlp.core.state import Client, ClientUpdate, ServerState, State, is_finite
from fedvlp.core.strategies import Strategy
from fedvlp.testing.contract import ContractError, difference, require

ROUNDING = 1e-4


def check_aggregator(aggregator: Aggregator) -> None:
    """Combine synthetic uploads with an aggregator, and check the contract of aggregators.

    Args:
        aggregator: The aggregator, with its options.

    Raises:
        ContractError: If the aggregator breaks a rule.
    """
    name = type(aggregator).__name__
    require(isinstance(aggregator, Aggregator), f"{name} must be a subclass of Aggregator.")
    require_frozen(aggregator, name)
    try:
        json.dumps(asdict(aggregator))  # type: ignore[call-overload]  # a frozen dataclass, as checked above
    except (TypeError, ValueError) as error:
        problem = f"{name}: options must be numbers, strings or aggregators, because results record them: {error}"
        raise ContractError(problem) from error
    least = aggregator.min_clients
    require(isinstance(least, int) and least >= 1, f"{name}.min_clients must be an integer above 0, got {least!r}.")
    # Medians and trimmed means have special cases for the smallest number of clients.
    for count in (least, least + 3):
        for dtype in (torch.float32, torch.float16):
            _check_combine(aggregator.bind(count, 0), name, count, dtype)
    bound = aggregator.bind(least + 3, 0)
    weights = _weights(least + 3)
    before = make_state(torch.float64)
    states = make_uploads(before, least + 3)
    combined = bound.combine(states, weights, before)
    change = difference(bound.combine(states[::-1], weights[::-1], before), combined, ROUNDING)
    require(not change, f"{name}.combine must not depend on the order of clients, but {change}.")
    if aggregator.is_linear:
        # Masks change every upload, but not their weighted sum.
        change = difference(bound.combine(mask_uploads(states, weights), weights, before), combined, ROUNDING)
        claim = "is_linear claims that the result depends only on the uploads' weighted sum, but for the same sum"
        require(not change, f"{name}.{claim} {change}. Set is_linear to False.")
    caller = f"{name}.aggregate"
    before = make_state()
    states = make_uploads(before, least + 3)
    memory: State = {}
    # The second round starts from the memory of the first.
    for _ in range(2):
        first, again = call_twice(bound.aggregate, caller, states, weights, before, memory)
        change = difference(first[0], again[0])
        require(not change, f"{caller} must keep state only in its memory, but two equal calls differ: {change}.")
        wrong = [key for key, value in first[1].items() if not isinstance(value, torch.Tensor)]
        require(not wrong, f"{caller} must keep only tensors in its memory, for checkpoints; {wrong} are not.")
        before, memory = first


def _check_combine(aggregator: Aggregator, name: str, count: int, dtype: torch.dtype) -> None:
    before = make_state(dtype)
    caller = f"{name}.combine"
    combined, again = call_twice(aggregator.combine, caller, make_uploads(before, count), _weights(count), before)
    change = difference(combined, again)
    advice = "Draw random numbers from the seed of bound()."
    require(not change, f"{caller} must return equal results for equal uploads, but {change}. {advice}")
    expected, kinds = _kinds(before), _kinds(combined)
    require(kinds == expected, f"{caller} must return tensors like the uploads, {expected}, but returns {kinds}.")
    require(is_finite(combined), f"{caller} returns NaN or infinity for {count} finite uploads.")


def _weights(count: int) -> Sequence[float]:
    return [3 + 2 * (index % 3) for index in range(count)]


def _kinds(state: State) -> dict[str, tuple[torch.dtype, list[int]]]:
    return {name: (value.dtype, list(value.shape)) for name, value in sorted(state.items())}


def check_strategy(
    strategy: Strategy, shared: State | None = None, updates: Sequence[ClientUpdate] | None = None
) -> None:
    """Combine updates with a strategy, and check the contract of strategies.

    Args:
        strategy: The strategy, with its options.
        shared: The server's initial tensors; None uses two synthetic tensors.
        updates: The clients' updates, in the order of their ids; None uses four clients of two domains, each with all
            shared tensors.

    Raises:
        ContractError: If the strategy breaks a rule.
        UserError: If its ``check`` rejects the clients. Pass updates of suitable clients.
    """
    name = type(strategy).__name__
    require(isinstance(strategy, Strategy), f"{name} must have the methods broadcast, aggregate and check.")
    require_frozen(strategy, name)
    server = ServerState.start(make_state() if shared is None else shared)
    cohort_updates = make_updates(server.shared) if updates is None else list(updates)
    strategy.check([update.client for update in cohort_updates])
    caller = f"{name}.broadcast"
    for update in cohort_updates:
        download, again = call_twice(strategy.broadcast, caller, server, update.client)
        wrong = [key for key, value in download.items() if not isinstance(value, torch.Tensor)]
        require(not wrong, f"{caller} must return tensors; {wrong} are not.")
        change = difference(download, again)
        require(not change, f"{caller} must return equal results for equal arguments, but {change}.")
    # Cohorts: all clients, all but the first, and only the first.
    for cohort in (cohort_updates, cohort_updates[1:], cohort_updates[:1]):
        _check_aggregate(strategy, name, server, cohort)
    change = difference(strategy.aggregate(server, []).shared, server.shared, ROUNDING)
    require(not change, f"{name}.aggregate must not change shared tensors without updates, but {change}.")


def _check_aggregate(strategy: Strategy, name: str, server: ServerState, updates: Sequence[ClientUpdate]) -> None:
    caller = f"{name}.aggregate with {len(updates)} clients"
    after, again = call_twice(strategy.aggregate, caller, server, list(updates))
    require(isinstance(after, ServerState), f"{caller} must return a ServerState, not a {type(after).__name__}.")
    for part in ("shared", "deployed", "memory"):
        change = difference(getattr(after, part), getattr(again, part))
        require(not change, f"{caller} must return equal results for equal updates, but in {part} {change}.")
        for key, value in getattr(after, part).items():
            subject = f"{caller}: in {part} {key!r}"
            require(isinstance(value, torch.Tensor), f"{subject} must be a tensor, for checkpoints.")
            require(not value.requires_grad, f"{subject} must not keep a gradient: detach it.")
            require(is_finite({key: value}), f"{subject} is NaN or infinite, although all uploads are finite.")
    expected, kinds = _kinds(server.shared), _kinds(after.shared)
    wrong = sorted(key for key in expected | kinds if expected.get(key) != kinds.get(key))
    require(not wrong, f"{caller} must preserve names, shapes and formats of shared tensors, but changes {wrong}.")
    extra = sorted(after.deployed.keys() - after.shared.keys())
    require(not extra, f"{caller} may only deploy shared tensors; {extra} are not shared.")
    require(after.round == server.round, f"{caller} must not change round, which the federation counts.")


def call_twice(function: Callable[..., Any], caller: str, *arguments: Any) -> tuple[Any, Any]:
    """Return the results of two equal calls, or raise a ContractError if they modify their arguments."""
    copies = copy.deepcopy(arguments)
    results = function(*arguments), function(*arguments)
    require(repr(arguments) == repr(copies), f"{caller} must not modify its arguments.")
    return results


def require_frozen(value: Any, name: str) -> None:
    """Raise a ContractError unless a value is a frozen dataclass."""
    is_frozen = is_dataclass(value) and getattr(type(value), "__dataclass_params__").frozen  # noqa: B009 (untyped)
    require(
        is_frozen,
        f"{name} must be a frozen dataclass, so that its options are recorded and a round can't change them. "
        "Put @dataclass(frozen=True) above the class.",
    )


def make_state(dtype: torch.dtype = torch.float32) -> State:
    """Create the two tensors that clients start from."""
    generator = torch.Generator().manual_seed(6)
    shapes = {"prompt": (2, 3), "bias": (4,)}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def make_uploads(before: State, count: int) -> list[State]:
    """Create uploads that each differ from a state by about 1."""
    generator = torch.Generator().manual_seed(4)
    states: list[State] = []
    for _ in range(count):
        moves = {name: torch.randn(value.shape, generator=generator) for name, value in before.items()}
        states.append({name: value + moves[name].to(value.dtype) for name, value in before.items()})
    return states


def make_updates(before: State, count: int = 4) -> list[ClientUpdate]:
    """Create updates in the order of client ids; clients alternate between two domains and have 3, 5, 7 ... images."""
    clients = [Client(number, number % 2, 3 + 2 * number, f"client {number}") for number in range(count)]
    states = make_uploads(before, count)
    return [ClientUpdate(client, state, client.num_examples) for client, state in zip(clients, states, strict=True)]


def mask_uploads(uploads: Sequence[State], weights: Sequence[float]) -> list[State]:
    """Add masks to uploads that cancel in their weighted sum, apart from rounding."""
    # The two masks of a pair cancel in the weighted sum, and hide each upload from every other statistic.
    generator = torch.Generator().manual_seed(5)
    masked: list[State] = []
    for state in uploads:
        masked.append({name: value.double() for name, value in state.items()})
    for one, other in itertools.combinations(range(len(uploads)), 2):
        for name, value in uploads[one].items():
            # Twenty times as large as the uploads, which are about 1.
            mask = 20 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
            masked[one][name] = masked[one][name] + mask / weights[one]
            masked[other][name] = masked[other][name] - mask / weights[other]
    return masked
