"""Rows that differ in the value of one option alone: what hyperparameter studies consist of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedvlp.report.rows import Row, complete_seeds
from fedvlp.results.record import Record

FEWEST = 3
"""How many values an option must have for a curve."""


@dataclass(frozen=True)
class OptionStudy:
    """A method with several values of one option, all else equal.

    Attributes:
        method: the method's class.
        option: the option's name.
        setting: values of other options, where there are several such studies of the option.
        rows: by value, with the choices of held-out domains that all values have.
    """

    method: str
    option: str
    setting: str
    rows: Mapping[float, Row]

    @property
    def is_of_seeds(self) -> bool:
        """Whether the option is a seed, so that its values have no order."""
        return self.option.endswith("seed")


def option_studies(records: Iterable[Record]) -> list[OptionStudy]:
    """Returns each option of each method that has three or more numbers as values while all else is equal."""
    buckets: dict[tuple[str, str], dict[str, dict[float, list[Record]]]] = {}
    for record in records:
        values = _values(record)
        for option, value in values.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                others = json.dumps(
                    {name: other for name, other in values.items() if name != option}, sort_keys=True, default=str
                )
                by_value = buckets.setdefault((record.method, option), {}).setdefault(others, {})
                by_value.setdefault(value, []).append(record)
    studies = []
    for (method, option), settings in sorted(buckets.items()):
        found = {others: _rows(by_value) for others, by_value in settings.items() if len(by_value) >= FEWEST}
        kept = {others: rows for others, rows in found.items() if len(rows) >= FEWEST}
        studies += [OptionStudy(method, option, _apart(others, list(kept)), rows) for others, rows in kept.items()]
    return studies


def _apart(own: str, settings: Sequence[str]) -> str:
    """Returns the values in which one setting, written as JSON, differs from any other."""
    all_values = [json.loads(setting) for setting in settings]
    told = [
        f"{name}={value}"
        for name, value in json.loads(own).items()
        if any(other.get(name) != value for other in all_values)
    ]
    return ", ".join(told)


def _rows(by_value: Mapping[float, Sequence[Record]]) -> dict[float, Row]:
    """Returns a row for each value, over the choices of held-out domains that all values have."""
    shared = set.intersection(*({record.held_out for record in records} for records in by_value.values()))
    found = {value: complete_seeds(records, sorted(shared)) for value, records in by_value.items() if shared}
    return {value: Row(f"{value:g}", index, found[value]) for index, value in enumerate(sorted(found)) if found[value]}


def _values(record: Record) -> dict[str, Any]:
    """Returns all that sets a row apart, by the option's name."""
    optimizer = {f"optimizer.{name}": value for name, value in (record.optimizer or {}).items()}
    training = {name: value for name, value in record.training.items() if name != "seed"}
    return {**record.options, **optimizer, **training, "rounds": record.rounds}
