"""Mean and deviation over seeds, and spread over domains."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

AVERAGE, SPREAD = "average", "spread"
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
    by_domain = {name: [of_seed[name] for of_seed in scores.values() if name in of_seed] for name in domains}
    complete = [[of_seed[name] for name in domains] for of_seed in scores.values() if set(domains) <= set(of_seed)]
    values = by_domain | {
        AVERAGE: [statistics.fmean(of_seed) for of_seed in complete],
        SPREAD: [statistics.pstdev(of_seed) for of_seed in complete if len(of_seed) > 1],
    }
    return {name: over_seeds(of_name) for name, of_name in values.items() if of_name}


def without_repeats(scores: Scores) -> Scores:
    """Returns the scores of one seed where no seed differs from another, as of a method that trains nothing.

    >>> without_repeats({0: {"ink": 50.0}, 1: {"ink": 50.0, "photo": 70.0}})
    {0: {'ink': 50.0, 'photo': 70.0}}
    """
    merged: dict[str, float] = {}
    for of_seed in scores.values():
        if any(merged.get(name, value) != value for name, value in of_seed.items()):
            return scores
        merged |= of_seed
    return {0: merged}
