"""Runs that differ in the value of one option alone: what hyperparameter studies consist of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedvlp.results.record import Record
from fedvlp.tools.report.series import HeldOut, MethodSeries, complete_seeds

MIN_VALUES = 3
"""How many values an option must have for a curve."""

RecordsByValue = dict[float, list[Record]]


@dataclass(frozen=True)
class OptionStudy:
    """A method with several values of one option, all else equal.

    Attributes:
        method: the method's class.
        option: the option's name.
        setting: values of other options, where there are several such studies of the option.
        series: by value, with the choices of held-out domains that all values have.
    """

    method: str
    option: str
    setting: str
    series: Mapping[float, MethodSeries]

    @property
    def is_of_seeds(self) -> bool:
        """Whether the option is a seed, so that its values have no order."""
        return self.option.endswith("seed")


def option_studies(records: Iterable[Record]) -> list[OptionStudy]:
    """Returns each option of each method that has three or more numbers as values while all else is equal."""
    studies: list[OptionStudy] = []
    for (method, option), by_setting in sorted(_group_by_option(records).items()):
        series = {others: _series_by_value(by_value) for others, by_value in by_setting.items()}
        kept = {others: found for others, found in series.items() if len(found) >= MIN_VALUES}
        for others, found in kept.items():
            studies.append(OptionStudy(method, option, _describe_setting(others, list(kept)), found))
    return studies


def _group_by_option(records: Iterable[Record]) -> dict[tuple[str, str], dict[str, RecordsByValue]]:
    """Returns the runs by method and option, then by all other values as JSON, then by the option's value."""
    groups: dict[tuple[str, str], dict[str, RecordsByValue]] = {}
    for record in records:
        values = _values(record)
        for option, value in values.items():
            if _is_number(value):
                by_setting = groups.setdefault((record.method, option), {})
                by_value = by_setting.setdefault(_without(values, option), {})
                by_value.setdefault(value, []).append(record)
    return groups


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _without(values: Mapping[str, Any], option: str) -> str:
    """Returns all values but that of an option as JSON, equal for equal values."""
    others = {name: value for name, value in values.items() if name != option}
    return json.dumps(others, sort_keys=True, default=str)


def _describe_setting(own: str, settings: Sequence[str]) -> str:
    """Returns the values in which one setting, written as JSON, differs from any other."""
    others = [json.loads(setting) for setting in settings]
    parts = []
    for name, value in json.loads(own).items():
        if any(other.get(name) != value for other in others):
            parts.append(f"{name}={value}")
    return ", ".join(parts)


def _series_by_value(by_value: Mapping[float, Sequence[Record]]) -> dict[float, MethodSeries]:
    """Returns a series for each value, over the choices of held-out domains that all values have."""
    shared = sorted(set.intersection(*map(_choices, by_value.values())))
    if not shared:
        return {}
    series: dict[float, MethodSeries] = {}
    for index, value in enumerate(sorted(by_value)):
        seeds = complete_seeds(by_value[value], shared)
        if seeds:
            series[value] = MethodSeries(f"{value:g}", index, seeds)
    return series


def _choices(records: Sequence[Record]) -> set[HeldOut]:
    return {record.held_out for record in records}


def _values(record: Record) -> dict[str, Any]:
    """Returns all in which runs of a method may differ, by the option's name."""
    optimizer = {f"optimizer.{name}": value for name, value in (record.optimizer or {}).items()}
    return {**record.options, **optimizer, **record.training_without_seed, "rounds": record.rounds}
