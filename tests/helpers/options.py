"""Options of classes, other values for them, and the differences that a resume reports."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvlp.results import Record
from fedvlp.runs.checkpoint import differences
from fedvlp.runs.descriptions import remove_clip_source
from fedvlp.utils.digests import constructor_arguments


def options_of(kind: type) -> list[str]:
    """List the names of a class's options, including options passed through ``**options``."""
    return list(constructor_arguments(kind))


def other_value(kind: type, name: str, values: Mapping[str, Any]) -> Any:
    """Choose an option's value from ``values``, or else a number or bool that differs from its default.

    Fails if ``values`` lacks an option that has another type of default.
    """
    if name in values:
        return values[name]
    default = constructor_arguments(kind)[name].default
    assert isinstance(default, (bool, int, float)), f"give another value for {kind.__name__}'s new option {name}"
    if isinstance(default, bool):
        return not default
    return default + 3 if isinstance(default, int) else default * 0.75 + 0.015625


def different(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """List the names of the differences that a resume finds between two runs' descriptions."""
    return {line.partition(":")[0] for line in differences(remove_clip_source(one), remove_clip_source(other))}


def record(description: Mapping[str, Any], data: Mapping[str, Any] | None = None, rounds: int = 3) -> Record:
    """Create the record, as read by tables, of a run with this description."""
    ended = {"held_out": ["ink"], "rounds": rounds, "accuracy": {}, "versions": {}, "data": data or {}}
    return Record.from_summary(Path("run"), {**description, **ended})
