"""Helpers of all checks: the error that they raise, comparisons of tensors, and synthetic uploads."""

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
    """A class breaks a rule of its contract; test runners show this error as a failure."""


def require(condition: bool, message: str) -> None:
    """Raise a ContractError with a message unless a condition holds."""
    if not condition:
        raise ContractError(message)


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


def run_tensors(state: RunState) -> dict[str, Tensor]:
    """Collect all tensors of a run's state, by group and name."""
    server = state.server
    groups = {"shared": server.shared, "deployed": server.deployed, "memory": server.memory}
    groups |= {f"personal/{client}": tensors for client, tensors in state.personal.items()}
    groups |= {f"optimizer/{client}": tensors for client, tensors in state.optimizer_states.items()}
    named: dict[str, Tensor] = {}
    for group, tensors in groups.items():
        named |= {f"{group}/{name}": value for name, value in tensors.items()}
    return named


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor], tolerance: float = 0.0) -> str:
    """Describe how two sets of tensors differ, for a message; empty if they are equal.

    Args:
        one: Tensors by name.
        other: The tensors of another run or call.
        tolerance: Largest difference of two values that is ignored; 0 requires equal bits.

    >>> difference({"p": torch.tensor([1.0, 2.0])}, {"p": torch.tensor([1.0, 2.5])})
    "'p' differs by up to 0.5"
    """
    if one.keys() != other.keys():
        return f"{sorted(one.keys() ^ other.keys())} are in only one of the two"
    for name, value in one.items():
        same = other[name]
        if (value.shape, value.dtype) != (same.shape, same.dtype):
            kinds = [f"{tensor.dtype} {list(tensor.shape)}" for tensor in (value, same)]
            return f"{name!r} is {kinds[0]} in one of them and {kinds[1]} in the other"
        if not torch.equal(value, same):
            largest = (value.double() - same.double()).abs().max().item()
            if not largest <= tolerance:  # also true for NaN
                return f"{name!r} differs by up to {largest:.3g}"
    return ""


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
