"""What every aggregator must keep to."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence

import torch

from fedvlp.core.aggregation import Aggregator
from fedvlp.core.state import State, is_finite
from fedvlp.testing.comparing import difference
from fedvlp.testing.failures import ContractError, require
from fedvlp.testing.uploads import masked, moved, require_frozen, starting_state
from fedvlp.utils.digests import class_and_options

ROUNDING = 1e-4


def check_aggregator(aggregator: Aggregator) -> None:
    """Combines made-up uploads by an aggregator, and checks what every one must keep to.

    Args:
        aggregator: The aggregator, with its options.

    Raises:
        ContractError: if it does not keep to something; says to what.
    """
    name = type(aggregator).__name__
    require(isinstance(aggregator, Aggregator), f"{name} must be a subclass of Aggregator.")
    require_frozen(aggregator, name)
    _check_description(aggregator, name)
    least = aggregator.min_clients
    require(isinstance(least, int) and least >= 1, f"{name}.min_clients must be a whole number above 0; got {least!r}.")
    for count in (least, least + 3):
        _check_combine(aggregator.bound(count, 0), name, count)
    bound = aggregator.bound(least + 3, 0)
    _check_order(bound, name, least + 3)
    _check_memory(bound, name, least + 3)
    _check_linear(bound, name, least + 3)


def _check_description(aggregator: Aggregator, name: str) -> None:
    try:
        json.dumps(class_and_options(aggregator))
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"{name}: its options must be numbers, strings or aggregators, written into results: {error}"
        ) from error


def _check_combine(aggregator: Aggregator, name: str, count: int) -> None:
    """Checks that ``combine`` is a pure function that keeps names, shapes and number formats."""
    for dtype in (torch.float32, torch.float16):
        before = starting_state(dtype)
        states = moved(before, count)
        given = copy.deepcopy((states, before, aggregator))
        made = aggregator.combine(states, _weights(count), before)
        again = aggregator.combine(states, _weights(count), before)
        require(
            repr((states, before, aggregator)) == repr(given), f"{name}.combine must change nothing that it is given."
        )
        found = difference(made, again)
        require(
            not found,
            f"{name}.combine must give the same for the same uploads, but {found}. Draw by the seed that bound() gets.",
        )
        expected = {each: (value.dtype, value.shape) for each, value in before.items()}
        kinds = {each: (value.dtype, value.shape) for each, value in made.items()}
        message = f"{name}.combine must give tensors as those sent, {_shown(expected)}; of {count} uploads it gives"
        require(kinds == expected, f"{message} {_shown(kinds)}.")
        require(is_finite(made), f"{name}.combine makes NaN or infinity of {count} finite uploads.")


def _check_order(aggregator: Aggregator, name: str, count: int) -> None:
    before = starting_state()
    states = moved(before, count)
    weights = _weights(count)
    straight = aggregator.combine(states, weights, before)
    found = difference(aggregator.combine(states[::-1], weights[::-1], before), straight, ROUNDING)
    require(not found, f"{name}.combine must not depend on the order of clients, but {found}.")


def _check_memory(aggregator: Aggregator, name: str, count: int) -> None:
    """Checks that what is remembered goes through ``aggregate`` alone."""
    before = starting_state()
    states = moved(before, count)
    memory: State = {}
    for _ in range(2):
        given = copy.deepcopy((states, before, memory))
        made, remembered = aggregator.aggregate(states, _weights(count), before, memory)
        again, _ = aggregator.aggregate(states, _weights(count), before, memory)
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


def _check_linear(aggregator: Aggregator, name: str, count: int) -> None:
    """Checks that an aggregator that says so needs the weighted sum of the uploads alone."""
    if not aggregator.is_linear:
        return
    before = starting_state(torch.float64)
    states = dict(enumerate(moved(before, count)))
    weights = _weights(count)
    hidden = masked(states, dict(enumerate(weights)))
    found = difference(
        aggregator.combine(list(hidden.values()), weights, before),
        aggregator.combine(list(states.values()), weights, before),
        ROUNDING,
    )
    message = (
        f"{name}.is_linear says that it needs the weighted sum of the uploads alone, but with the same sum {found}"
    )
    require(not found, f"{message}. Let is_linear be false.")


def _weights(count: int) -> Sequence[float]:
    return [3 + 2 * (index % 3) for index in range(count)]


def _shown(kinds: dict[str, tuple[torch.dtype, torch.Size]]) -> str:
    return ", ".join(f"{name} {list(shape)} {dtype}" for name, (dtype, shape) in sorted(kinds.items()))
