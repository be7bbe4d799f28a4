"""Made-up uploads, and masks that hide each of them and cancel in their weighted sum."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, TypeVar

import torch

from fedvlp.core.state import Client, ClientUpdate, State
from fedvlp.testing.failures import require

Key = TypeVar("Key")
MASK = 20.0
"""How large masks are; uploads are about 1."""
SHAPES = {"prompt": (2, 3), "bias": (4,)}


def starting_state(dtype: torch.dtype = torch.float32) -> State:
    """Returns what clients go on from: two tensors."""
    generator = torch.Generator().manual_seed(6)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def moved(before: State, count: int, seed: int = 4) -> list[State]:
    """Returns uploads that each moved from a state by about 1."""
    generator = torch.Generator().manual_seed(seed)
    states: list[State] = []
    for _ in range(count):
        moves = {name: torch.randn(value.shape, generator=generator) for name, value in before.items()}
        states.append({name: value + moves[name].to(value.dtype) for name, value in before.items()})
    return states


def updates_of(before: State, count: int = 4) -> list[ClientUpdate]:
    """Returns updates of clients of two domains in turn, with 3, 5, 7 ... images each, in the order of their ids."""
    clients = [Client(number, number % 2, 3 + 2 * number, f"client {number}") for number in range(count)]
    states = moved(before, count)
    return [ClientUpdate(each, state, each.num_examples) for each, state in zip(clients, states, strict=True)]


def masked(uploads: Mapping[Key, State], weights: Mapping[Key, float]) -> dict[Key, State]:
    """Returns uploads in which each pair has a mask, which one adds to its weighted upload and the other subtracts.

    Their weighted sum stays, but for rounding, and no other; so what needs that sum alone gives the same.

    Args:
        uploads: of each client.
        weights: of each client, above 0.
    """
    generator = torch.Generator().manual_seed(5)
    hidden: dict[Key, State] = {}
    for key, state in uploads.items():
        hidden[key] = {name: value.double() * weights[key] for name, value in state.items()}
    for one, other in itertools.combinations(uploads, 2):
        for name, value in uploads[one].items():
            mask = MASK * torch.randn(value.shape, generator=generator, dtype=torch.float64)
            hidden[one][name] = hidden[one][name] + mask
            hidden[other][name] = hidden[other][name] - mask
    for key, state in hidden.items():
        for value in state.values():
            value /= weights[key]
    return hidden


def require_frozen(value: Any, name: str) -> None:
    """Raises ContractError unless a value is of a frozen dataclass."""
    is_frozen = is_dataclass(value) and getattr(type(value), "__dataclass_params__").frozen  # noqa: B009 (untyped)
    require(
        is_frozen,
        f"{name} must be a frozen dataclass, so that its options are recorded and a round can't change them: "
        "put @dataclass(frozen=True) above the class.",
    )
