"""What a client's upload adds to the tensors that it went on from, and how long that is."""

from __future__ import annotations

import math

from fedvlp.core.state import State


def shortened(update: State, max_norm: float) -> State:
    """Returns an update in float64 that is no longer than the norm, in its own direction."""
    norm = norm_of(update)
    return {name: move * (max_norm / norm) for name, move in update.items()} if norm > max_norm else update


def update_of(state: State, before: State) -> State:
    """Returns the difference of an upload from ``before``, in float64."""
    return {name: value.double() - before[name].double() for name, value in state.items()}


def norm_of(update: State) -> float:
    """Returns the Euclidean norm over all tensors of an update in float64."""
    return math.sqrt(sum(move.square().sum().item() for move in update.values()))
