"""Helpers of all checks: the error that they raise, and comparisons of tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedvlp.core.state import RunState


class ContractError(AssertionError):
    """A class breaks a rule of its contract; test runners show this error as a failure."""


def require(condition: bool, message: str) -> None:
    """Raise a ContractError with a message unless a condition holds."""
    if not condition:
        raise ContractError(message)


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
