"""Every option of a class, as its signature lists them, each with another value; and what a change of one changes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvlp.results import Record
from fedvlp.runs.checkpoint import differences
from fedvlp.runs.descriptions import remove_clip_source
from fedvlp.utils.digests import constructor_arguments


def options_of(kind: type) -> list[str]:
    """Returns the names of all that a class can be given, by itself or through ``**options``."""
    return list(constructor_arguments(kind))


def other_value(kind: type, name: str, values: Mapping[str, Any]) -> Any:
    """Returns the value given for an option, or another number or truth value than its default.

    An option whose default is neither fails until a value is given for it.
    """
    if name in values:
        return values[name]
    default = constructor_arguments(kind)[name].default
    assert isinstance(default, (bool, int, float)), f"give another value for {kind.__name__}'s new option {name}"
    if isinstance(default, bool):
        return not default
    return default + 3 if isinstance(default, int) else default * 0.75 + 0.015625


def different(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """Returns the names of what a resume finds different in the descriptions of two runs."""
    return {line.partition(":")[0] for line in differences(remove_clip_source(one), remove_clip_source(other))}


def record(description: Mapping[str, Any], data: Mapping[str, Any] | None = None, rounds: int = 3) -> Record:
    """Returns what a table reads of a run of this description."""
    ended = {"held_out": ["ink"], "rounds": rounds, "accuracy": {}, "versions": {}, "data": data or {}}
    return Record.from_summary(Path("run"), {**description, **ended})
