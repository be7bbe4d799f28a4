"""What callbacks remember, as a checkpoint holds it: JSON in the header, and tensors named by their places in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedvlp.core.run_state import CallbackStates
from fedvlp.core.state import State
from fedvlp.utils.errors import UserError
from fedvlp.utils.json_text import parse_json


def split_states(callbacks: CallbackStates) -> tuple[dict[str, Any], State]:
    """Returns what JSON can hold, with null in the place of each tensor, and the tensors; both empty if there is none.

    >>> content, tensors = split_states(CallbackStates({"Stop": {"wait": 2, "best": Tensor([0.5])}}))
    >>> content["states"], tensors
    ({'Stop': {'wait': 2, 'best': None}}, {'["Stop", "best"]': tensor([0.5000])})
    """
    tensors: State = {}
    states = _without_tensors(callbacks.states, [], tensors)
    if not states and not callbacks.stopped_by:
        return {}, {}
    return {"states": states, "stopped_by": list(callbacks.stopped_by)}, tensors


def join_states(path: Path, content: Any, tensors: Mapping[str, Tensor]) -> CallbackStates:
    """Returns what :func:`split_states` split.

    Args:
        path: of the checkpoint, for messages.
        content: of its header; None if it has nothing of callbacks.
        tensors: by their places.

    Raises:
        UserError: if it is nothing that was split.
    """
    if content is None and not tensors:
        return CallbackStates()
    try:
        states: dict[str, Any] = content["states"]
        stopped_by: list[str] = content["stopped_by"]
        are_states = isinstance(states, dict) and all(isinstance(each, dict) for each in states.values())
        if not are_states or not isinstance(stopped_by, list) or not all(isinstance(key, str) for key in stopped_by):
            raise TypeError("states or stopped_by")
        for name, tensor in tensors.items():
            *parents, last = parse_json(name)
            place: Any = states
            for key in parents:
                place = place[key]
            if place[last] is not None:
                raise ValueError(name)
            place[last] = tensor
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise UserError(f"{path} holds something else than what callbacks remember. Use an earlier one.") from error
    return CallbackStates(states, tuple(stopped_by))


def _without_tensors(value: Any, place: list[Any], tensors: State) -> Any:
    """Returns a value with None for each tensor in it, which is put among the tensors."""
    if isinstance(value, Tensor):
        tensors[json.dumps(place)] = value
        return None
    if isinstance(value, Mapping):
        return {key: _without_tensors(inner, [*place, key], tensors) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_tensors(inner, [*place, index], tensors) for index, inner in enumerate(value)]
    return value
