"""What every aggregation rule must keep to."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence

import torch

from fedvlp.core.aggregation import Aggregator, describe_aggregator
from fedvlp.core.state import State, is_finite
from fedvlp.testing.comparing import difference
from fedvlp.testing.failures import ContractError, require
from fedvlp.testing.uploads import masked, moved, require_frozen, starting_state

ROUNDING = 1e-4


def check_aggregation_rule(rule: Aggregator) -> None:
    """Combines made-up uploads by a rule, and checks what every rule must keep to.

    Args:
        rule: The rule, with its options.

    Raises:
        ContractError: if it does not keep to something; says to what.
    """
    name = type(rule).__name__
    require(isinstance(rule, Aggregator), f"{name} must be a subclass of Aggregator.")
    require_frozen(rule, name)
    _check_description(rule, name)
    least = rule.min_clients
    require(isinstance(least, int) and least >= 1, f"{name}.min_clients must be a whole number above 0; got {least!r}.")
    for count in (least, least + 3):
        _check_combine(rule.bound(count, 0), name, count)
    placed = rule.bound(least + 3, 0)
    _check_order(placed, name, least + 3)
    _check_memory(placed, name, least + 3)
    _check_linear(placed, name, least + 3)


def _check_description(rule: Aggregator, name: str) -> None:
    try:
        json.dumps(describe_aggregator(rule))
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"{name}: its options must be numbers, texts or rules, written into results: {error}"
        ) from error


def _check_combine(rule: Aggregator, name: str, count: int) -> None:
    """Checks that ``combine`` is a pure function that keeps names, shapes and number formats."""
    for dtype in (torch.float32, torch.float16):
        before = starting_state(dtype)
        states = moved(before, count)
        given = copy.deepcopy((states, before, rule))
        made = rule.combine(states, _weights(count), before)
        again = rule.combine(states, _weights(count), before)
        require(repr((states, before, rule)) == repr(given), f"{name}.combine must change nothing that it is given.")
        found = difference(made, again)
        require(not found, f"{name}.combine must give the same for the same uploads, but {found}. Draw in placed().")
        expected = {each: (value.dtype, value.shape) for each, value in before.items()}
        kinds = {each: (value.dtype, value.shape) for each, value in made.items()}
        told = f"{name}.combine must give tensors as those sent, {_shown(expected)}; of {count} uploads it gives"
        require(kinds == expected, f"{told} {_shown(kinds)}.")
        require(is_finite(made), f"{name}.combine makes NaN or infinity of {count} finite uploads.")


def _check_order(rule: Aggregator, name: str, count: int) -> None:
    before = starting_state()
    states = moved(before, count)
    weights = _weights(count)
    straight = rule.combine(states, weights, before)
    found = difference(rule.combine(states[::-1], weights[::-1], before), straight, ROUNDING)
    require(not found, f"{name}.combine must not depend on the order of clients, but {found}.")


def _check_memory(rule: Aggregator, name: str, count: int) -> None:
    """Checks that what is remembered goes through ``aggregate`` alone."""
    before = starting_state()
    states = moved(before, count)
    memory: State = {}
    for _ in range(2):
        given = copy.deepcopy((states, before, memory))
        made, remembered = rule.aggregate(states, _weights(count), before, memory)
        again, _ = rule.aggregate(states, _weights(count), before, memory)
        require(
            repr((states, before, memory)) == repr(given), f"{name}.aggregate must change nothing that it is given."
        )
        found = difference(made, again)
        require(
            not found, f"{name}.aggregate must remember through its memory alone, but twice the same gives: {found}."
        )
        odd = [key for key, value in remembered.items() if not isinstance(value, torch.Tensor)]
        require(not odd, f"{name}.aggregate must remember tensors, which checkpoints hold; {odd} are none.")
        memory = remembered
        before = made


def _check_linear(rule: Aggregator, name: str, count: int) -> None:
    """Checks that a rule that says so needs the weighted sum of the uploads alone."""
    if not rule.is_linear:
        return
    before = starting_state(torch.float64)
    states = dict(enumerate(moved(before, count)))
    weights = _weights(count)
    hidden = masked(states, dict(enumerate(weights)))
    found = difference(
        rule.combine(list(hidden.values()), weights, before),
        rule.combine(list(states.values()), weights, before),
        ROUNDING,
    )
    told = f"{name}.is_linear says that it needs the weighted sum of the uploads alone, but with the same sum {found}"
    require(not found, f"{told}. Let is_linear be false.")


def _weights(count: int) -> Sequence[float]:
    return [3 + 2 * (index % 3) for index in range(count)]


def _shown(kinds: dict[str, tuple[torch.dtype, torch.Size]]) -> str:
    return ", ".join(f"{name} {list(shape)} {dtype}" for name, (dtype, shape) in sorted(kinds.items()))
