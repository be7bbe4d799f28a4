"""How checks report what is violated, and what they compare: tensors of two runs, made-up uploads, masked ones."""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor

from fedvlp.core.state import Client, ClientUpdate, RunState, State

ROUNDING = 1e-4


class ContractError(AssertionError):
    """Says what a class must do and does not; test runners show it as a failure."""


def require(is_so: bool, message: str) -> None:
    """Raise ContractError with a message unless something is so."""
    if not is_so:
        raise ContractError(message)


def call_twice(function: Callable[..., Any], who: str, *arguments: Any) -> tuple[Any, Any]:
    """Return what two calls with the same arguments give; raises ContractError if they change these."""
    given = copy.deepcopy(arguments)
    results = function(*arguments), function(*arguments)
    require(repr(arguments) == repr(given), f"{who} must change nothing that it is given.")
    return results


def require_frozen(value: Any, name: str) -> None:
    """Raise ContractError unless a value is of a frozen dataclass."""
    is_frozen = is_dataclass(value) and getattr(type(value), "__dataclass_params__").frozen  # noqa: B009 (untyped)
    require(
        is_frozen,
        f"{name} must be a frozen dataclass, so that its options are recorded and a round can't change them: "
        "put @dataclass(frozen=True) above the class.",
    )


def run_tensors(state: RunState) -> dict[str, Tensor]:
    """Return all tensors of a run's state, by where they are and by name."""
    server = state.server
    groups = {"shared": server.shared, "deployed": server.deployed, "memory": server.memory}
    groups |= {f"personal/{client}": tensors for client, tensors in state.personal.items()}
    groups |= {f"optimizer/{client}": tensors for client, tensors in state.optimizer_states.items()}
    by_place: dict[str, Tensor] = {}
    for place, tensors in groups.items():
        by_place |= {f"{place}/{name}": value for name, value in tensors.items()}
    return by_place


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor], tolerance: float = 0.0) -> str:
    """Return how two sets of tensors differ, for a message; an empty string if they do not.

    Args:
        one: tensors by name.
        other: the same of another run or call.
        tolerance: the largest difference of two values that is none; 0 asks for equal bits.

    >>> difference({"p": torch.tensor([1.0, 2.0])}, {"p": torch.tensor([1.0, 2.5])})
    "'p' differs by up to 0.5"
    """
    if one.keys() != other.keys():
        return f"{sorted(one.keys() ^ other.keys())} are in one of them only"
    for name, value in one.items():
        same = other[name]
        if (value.shape, value.dtype) != (same.shape, same.dtype):
            kinds = [f"{each.dtype} {list(each.shape)}" for each in (value, same)]
            return f"{name!r} is {kinds[0]} in one of them and {kinds[1]} in the other"
        if not torch.equal(value, same):
            most = (value.double() - same.double()).abs().max().item()
            if not most <= tolerance:  # also where it is NaN
                return f"{name!r} differs by up to {most:.3g}"
    return ""


def starting_state(dtype: torch.dtype = torch.float32) -> State:
    """Return what clients start from: two tensors."""
    generator = torch.Generator().manual_seed(6)
    shapes = {"prompt": (2, 3), "bias": (4,)}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def moved(before: State, count: int) -> list[State]:
    """Return uploads that each moved from a state by about 1."""
    generator = torch.Generator().manual_seed(4)
    states: list[State] = []
    for _ in range(count):
        moves = {name: torch.randn(value.shape, generator=generator) for name, value in before.items()}
        states.append({name: value + moves[name].to(value.dtype) for name, value in before.items()})
    return states


def updates_of(before: State, count: int = 4) -> list[ClientUpdate]:
    """Return updates of clients of two domains in turn, with 3, 5, 7 ... images each, in the order of their ids."""
    clients = [Client(number, number % 2, 3 + 2 * number, f"client {number}") for number in range(count)]
    states = moved(before, count)
    return [ClientUpdate(each, state, each.num_examples) for each, state in zip(clients, states, strict=True)]


def masked(uploads: Sequence[State], weights: Sequence[float]) -> list[State]:
    """Return uploads of the same weighted sum, but for rounding: each pair adds and subtracts a mask."""
    # Masks of a pair cancel in the weighted sum, and hide each upload from every other statistic.
    generator = torch.Generator().manual_seed(5)
    hidden: list[State] = []
    for state in uploads:
        hidden.append({name: value.double() for name, value in state.items()})
    for one, other in itertools.combinations(range(len(uploads)), 2):
        for name, value in uploads[one].items():
            # Twenty times as large as the uploads, which are about 1.
            mask = 20 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
            hidden[one][name] = hidden[one][name] + mask / weights[one]
            hidden[other][name] = hidden[other][name] - mask / weights[other]
    return hidden
