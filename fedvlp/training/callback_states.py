"""What callbacks remember from round to round, as a checkpoint keeps it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch.callbacks import Callback
from torch import Tensor

from fedvlp.core.state import CallbackStates
from fedvlp.utils.errors import UserError

log = logging.getLogger(__name__)


def states_of(callbacks: Sequence[Any], stopped_by: Sequence[Any] = ()) -> CallbackStates:
    """Returns what callbacks remember, by their keys, and who asked the run to stop.

    Args:
        callbacks: those of a federation.
        stopped_by: those of them that asked.

    Raises:
        UserError: if one remembers what a checkpoint can't hold.
    """
    states: dict[str, Any] = {}
    for callback in callbacks:
        state = callback.state_dict() if isinstance(callback, Callback) else {}
        if state:
            _check(type(callback).__name__, state)
            states[callback.state_key] = state
    return CallbackStates(states, tuple(callback.state_key for callback in stopped_by))


def restore(callbacks: Sequence[Any], saved: CallbackStates) -> list[Any]:
    """Gives callbacks back what they remembered; returns those of them that had asked the run to stop.

    Args:
        callbacks: those of a federation.
        saved: what a checkpoint kept.

    Raises:
        UserError: if a callback can't read what it is given.
    """
    by_key = {callback.state_key: callback for callback in callbacks if isinstance(callback, Callback)}
    for key, state in saved.states.items():
        if key not in by_key:
            log.warning("The checkpoint holds what %s remembered, which is not among the callbacks now.", key)
            continue
        try:
            by_key[key].load_state_dict(dict(state))
        except Exception as error:  # a checkpoint may be of another version of the callback, which may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise UserError(
                f"{key} can't go on from what the checkpoint holds of it ({reason}). Leave it out."
            ) from error
    return [by_key[key] for key in saved.stopped_by if key in by_key]


def _check(name: str, value: Any) -> None:
    """Raises UserError for what is neither JSON nor a tensor, at any depth."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        inner = list(value.values())
    elif isinstance(value, list):
        inner = value
    elif value is None or isinstance(value, (bool, int, float, str, Tensor)):
        return
    else:
        raise UserError(
            f"{name}.state_dict() holds a {type(value).__name__}, which no checkpoint keeps. It may hold numbers, "
            "texts, None, tensors, and lists and mappings of these by text."
        )
    for each in inner:
        _check(name, each)
