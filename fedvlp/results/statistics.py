"""Mean and deviation over seeds, and spread over domains."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

AVERAGE = "average"
SPREAD = "spread"
Interval = tuple[float, float]
"""The lower and the upper end, in percent."""

Scores = Mapping[int, Mapping[str, float]]
"""Accuracies in percent, by seed and then by domain."""


@dataclass(frozen=True)
class Cell:
    """A number over several seeds.

    Attributes:
        mean: over seeds.
        deviation: the sample standard deviation (n - 1); None of a single seed.
        count: number of seeds.
    """

    mean: float
    deviation: float | None
    count: int


def over_seeds(values: Sequence[float]) -> Cell:
    """Returns mean and sample standard deviation.

    >>> over_seeds([60.0, 62.0, 64.0])
    Cell(mean=62.0, deviation=2.0, count=3)
    >>> over_seeds([60.0]).deviation is None
    True
    """
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Cell(statistics.fmean(values), deviation, len(values))


def cells(scores: Scores, domains: Sequence[str]) -> dict[str, Cell]:
    """Returns the cells of a row: each domain's, and average and spread over all of them.

    Average and population standard deviation over domains are taken for each seed first, and of seeds that have every
    domain only; what was not measured is left out.

    >>> row = cells({0: {"ink": 50.0, "photo": 70.0}, 1: {"ink": 54.0}}, ["ink", "photo"])
    >>> {name: (cell.mean, cell.count) for name, cell in row.items()}
    {'ink': (52.0, 2), 'photo': (70.0, 1), 'average': (60.0, 1), 'spread': (10.0, 1)}
    """
    values: dict[str, list[float]] = {}
    # Over domains first, so that the deviation of the average is that between seeds.
    complete = _complete_seeds(scores, domains)
    values[AVERAGE] = [statistics.fmean(accuracies) for accuracies in complete]
    values[SPREAD] = [statistics.pstdev(accuracies) for accuracies in complete if len(accuracies) > 1]
    over_domains = {name: over_seeds(of_name) for name, of_name in values.items() if of_name}
    return {**column_cells(scores, domains), **over_domains}


def column_cells(scores: Scores, columns: Sequence[str]) -> dict[str, Cell]:
    """Returns the cell of each column that any seed has.

    >>> column_cells({0: {"ink": 50.0}, 1: {"ink": 54.0}}, ["ink", "photo"])["ink"].mean
    52.0
    """
    found: dict[str, Cell] = {}
    for column in columns:
        values = [accuracies[column] for accuracies in scores.values() if column in accuracies]
        if values:
            found[column] = over_seeds(values)
    return found


def _complete_seeds(scores: Scores, domains: Sequence[str]) -> list[list[float]]:
    """Returns the accuracies on all domains, in their order, of each seed that has them all."""
    complete = []
    for accuracies in scores.values():
        if set(domains) <= set(accuracies):
            complete.append([accuracies[domain] for domain in domains])
    return complete


def without_repeats(scores: Scores) -> Scores:
    """Returns the scores under a single seed where no two seeds differ, as of a method that trains nothing.

    >>> without_repeats({0: {"ink": 50.0}, 1: {"ink": 50.0, "photo": 70.0}})
    {0: {'ink': 50.0, 'photo': 70.0}}
    """
    merged: dict[str, float] = {}
    for accuracies in scores.values():
        if any(merged.get(domain, value) != value for domain, value in accuracies.items()):
            return scores
        merged |= accuracies
    return {0: merged}
