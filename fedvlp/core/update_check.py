"""What an update must be before it counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from fedvlp.core.state import ADD_ON, ClientUpdate, State, is_finite

NOT_FINITE = "uploads NaN or infinity"


class TensorSpec(NamedTuple):
    """What is known of a tensor before it comes.

    Attributes:
        shape: its shape.
        dtype: the type of its numbers.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """How many bytes its numbers take."""
        return math.prod(self.shape) * self.dtype.itemsize

    def is_of(self, value: Tensor) -> bool:
        """Whether a tensor has this shape and type."""
        return value.shape == self.shape and value.dtype == self.dtype

    def __str__(self) -> str:
        """Returns ``[2, 3] of float32``."""
        return f"{list(self.shape)} of {str(self.dtype).removeprefix('torch.')}"


def tensor_specs(state: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """The spec of each tensor of a state."""
    return {name: TensorSpec(tuple(value.shape), value.dtype) for name, value in state.items()}


def upload_error(state: object) -> str:
    """Returns why something can't be sent as a state; an empty string if it can.

    >>> upload_error({"prompt": torch.zeros(2)}), upload_error({"prompt": [0.0]})
    ('', "uploads 'prompt' as a list, not a tensor")
    """
    if not isinstance(state, dict):
        return f"uploads a {type(state).__name__}, not a dict of tensors by name"
    for name, value in state.items():
        if not isinstance(value, Tensor):
            return f"uploads {name!r} as a {type(value).__name__}, not a tensor"
        if value.layout != torch.strided or value.is_meta:
            return f"uploads {name!r} as a tensor without plain numbers in memory"
    return ""


def update_error(
    update: ClientUpdate, expected: Mapping[str, TensorSpec], shared: State, max_norm: float | None = None
) -> str:
    """Why an update can't be combined with others; an empty string if it can.

    Args:
        update: what a client sent.
        expected: the spec of each tensor that the phase uploads.
        shared: the tensors that clients started from.
        max_norm: the largest Euclidean norm, over all its tensors, of the difference to what is shared; of the tensors
            themselves where the server keeps them in another shape. Above 0; None for any. What add-ons send is no
            tensor of the method and does not count.
    """
    if problem := _wrong_tensors(update.state, expected) or _wrong_weight(update):
        return problem
    if not is_finite(update.state):
        return NOT_FINITE
    if max_norm is None:
        return ""
    norms: list[float] = []
    for name, value in update.state.items():
        if name.startswith(f"{ADD_ON}/"):
            continue
        start = shared.get(name)
        moved = value.double()
        if start is not None and start.shape == value.shape:
            moved = moved - start.double()
        norms.append(torch.linalg.vector_norm(moved).item())
    norm = math.hypot(*norms)
    return f"has moved by {norm:.4g}, more than max_update_norm of {max_norm:g}" if norm > max_norm else ""


def _wrong_tensors(state: State, expected: Mapping[str, TensorSpec]) -> str:
    """Returns which tensor is missing, unknown, or of another shape or type."""
    # Compared without making anything, as nearly all updates are as they should be.
    if state.keys() == expected.keys() and all(expected[name].is_of(value) for name, value in state.items()):
        return ""
    specs = tensor_specs(state)
    for name, spec in expected.items():
        if name not in specs:
            return f"uploads no {name!r}"
        if specs[name] != spec:
            return f"uploads {name!r} as {specs[name]}, not {spec}"
    unknown = sorted(specs.keys() - expected.keys())
    return f"uploads {unknown[0]!r}, which the phase does not send"


def _wrong_weight(update: ClientUpdate) -> str:
    weight = update.num_examples
    if type(weight) is int and weight > 0:  # as nearly always; to ask about a real number takes longer
        return ""
    if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 < weight < math.inf:
        return f"says that it trained on {weight!r} images"
    return ""
