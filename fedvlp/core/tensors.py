"""A module's tensors by name: states are copied into them, and none of them may be replaced."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedvlp.core.state import State
from fedvlp.utils.errors import UserError


def copy_state(state: State, tensors: Mapping[str, Tensor], owner: str) -> None:
    """Copies a state's values into the tensors of the same names.

    Args:
        state: What is copied.
        tensors: All tensors of the module; those that the state does not name stay as they are.
        owner: The module's name, for errors.

    Raises:
        UserError: If a name is unknown or a shape differs.
    """
    if unknown := sorted(state.keys() - tensors.keys()):
        raise UserError(f"{owner} has no tensors named {unknown}; it has {sorted(tensors)}.")
    for name, value in state.items():
        expected = tuple(tensors[name].shape)
        if value.shape != expected:
            raise UserError(
                f"{owner} expects {name!r} in shape {expected}, got {tuple(value.shape)}. "
                "Use the prompt length, experts and CLIP that it was trained with."
            )
        tensors[name].detach().copy_(value)


def check_not_replaced(before: Mapping[str, Tensor], after: Mapping[str, Tensor], owner: str) -> None:
    """Sees that a module still has the tensors that it had.

    Raises:
        UserError: If one is another object now, for what was trained in it was then never sent.
    """
    replaced = [name for name, tensor in after.items() if before.get(name) is not tensor]
    if replaced:
        raise UserError(
            f"{owner} put new tensors in place of {', '.join(replaced)} during training. "
            "Change them in place (copy_, mul_), or register them with persistent=False if they are not sent."
        )
