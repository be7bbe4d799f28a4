"""Names for the rows of a table of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from fedvlp.results.record import Record


def row_labels(records: Iterable[Record]) -> dict[Hashable, str]:
    """Returns a name for each of the runs' settings.

    It is the method's name, and where one method has several settings, the values in which they differ as well, such as
    ``TRIP (num_experts=2, prompt_length=1)``. The value that is most frequent in a method's rows is not named.
    """
    rows = {record.settings: record for record in records}
    labels: dict[Hashable, str] = {}
    for settings, record in rows.items():
        others = [_values(other) for other in rows.values() if other.method == record.method]
        own = _values(record)
        told = [f"{name}={_shown(own[name])}" for name in sorted(own) if _is_told(name, own, others)]
        labels[settings] = f"{record.method} ({', '.join(told)})" if told else record.method
    return _made_unique(labels)


def _is_told(name: str, own: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a value sets a row apart: all rows have such a value, and it is not the one that is most frequent."""
    if not all(name in row for row in rows):
        return False
    counts = Counter(_shown(row[name]) for row in rows)
    others = [count for value, count in counts.items() if value != _shown(own[name])]
    return bool(others) and counts[_shown(own[name])] <= max(others)


def _values(record: Record) -> dict[str, Any]:
    """Returns all that may differ between two rows of one method."""
    optimizer = {("optimizer" if name == "class" else name): value for name, value in (record.optimizer or {}).items()}
    training = {name: value for name, value in record.training.items() if name != "seed"}
    return {**optimizer, **training, **record.options, "rounds": record.rounds}


def _shown(value: Any) -> str:
    """Returns a value as a reader wants it."""
    if isinstance(value, Mapping):
        return "/".join(_shown(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return "+".join(_shown(part) for part in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _made_unique(labels: Mapping[Hashable, str]) -> dict[Hashable, str]:
    """Numbers labels that occur more than once."""
    seen: dict[str, int] = {}
    unique: dict[Hashable, str] = {}
    for settings, label in labels.items():
        seen[label] = seen.get(label, 0) + 1
        unique[settings] = label if seen[label] == 1 else f"{label} [{seen[label]}]"
    return unique
