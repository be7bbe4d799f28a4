"""Tensors of two runs or two states, and in words how they differ."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedvlp.core.state import RunState


def run_tensors(state: RunState) -> dict[str, Tensor]:
    """Returns all tensors of a run's state, by where they are and by name."""
    server = state.server
    groups = {"shared": server.shared, "deployed": server.deployed, "memory": server.memory}
    groups |= {f"personal/{client}": tensors for client, tensors in state.personal.items()}
    groups |= {f"optimizer/{client}": tensors for client, tensors in state.optimizer_states.items()}
    found: dict[str, Tensor] = {}
    for where, tensors in groups.items():
        found |= {f"{where}/{name}": value for name, value in tensors.items()}
    return found


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor], tolerance: float = 0.0) -> str:
    """Returns in words how two sets of tensors differ; an empty text if they do not.

    Args:
        one: tensors by name.
        other: the same of another run or call.
        tolerance: the largest difference of two numbers that is none; 0 asks for equal bits.

    >>> difference({"p": torch.tensor([1.0, 2.0])}, {"p": torch.tensor([1.0, 2.5])})
    "'p' differs by up to 0.5"
    """
    if one.keys() != other.keys():
        return f"{sorted(one.keys() ^ other.keys())} are in one of them only"
    for name, value in one.items():
        same = other[name]
        if (value.shape, value.dtype) != (same.shape, same.dtype):
            return f"{name!r} is {_kind(value)} in one of them and {_kind(same)} in the other"
        if not torch.equal(value, same):
            most = (value.double() - same.double()).abs().max().item()
            if not most <= tolerance:
                return f"{name!r} differs by up to {most:.3g}"
    return ""


def _kind(value: Tensor) -> str:
    return f"{value.dtype} {list(value.shape)}"
