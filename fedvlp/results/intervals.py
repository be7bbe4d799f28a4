"""How far a table's cells rest on the images that happened to be measured: bootstrap intervals over images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from fedvlp.core.metrics.bootstrap import Samples, interval, resample
from fedvlp.core.predictions import Predictions, stack
from fedvlp.results.compare import Table, TableRow
from fedvlp.results.confusion import LAST_ROW, ZERO_SHOT_ROW
from fedvlp.results.record import Record
from fedvlp.results.statistics import AVERAGE, Interval

OfSeeds = Mapping[int, Mapping[str, Predictions]]
"""By seed and then by domain."""


def with_intervals(table: Table) -> Table:
    """Returns the table with intervals of the cells of last rounds and of zero-shot CLIP, where images are known."""
    return replace(table, rows=tuple(replace(row, intervals=intervals(table, row)) for row in table.rows))


def intervals(table: Table, row: TableRow) -> dict[str, Interval]:
    """Returns the 95 % percentile intervals of a row's mean accuracies, by domain and for the average.

    Images are drawn with what every seed took them for, since all seeds measure the same ones: more seeds do not make
    more images. Domains are drawn independently. What lacks a run's predictions, or has other images for another seed,
    has no interval.
    """
    if row.selection not in ("last", "both", ""):
        return {}
    of_seeds = _of_seeds(row, table.role)
    found: dict[str, Interval] = {}
    for domain in table.domains:
        measured = [of_seed[domain] for of_seed in of_seeds.values() if domain in of_seed]
        samples = _samples(f"{table.role}/{domain}", measured)
        if samples is not None and domain in row.cells and row.cells[domain].count == _count(of_seeds, [domain]):
            found[domain] = _ends(samples)
    complete = [of_seed for of_seed in of_seeds.values() if set(table.domains) <= set(of_seed)]
    of_domains = [
        _samples(f"{table.role}/{domain}", [of_seed[domain] for of_seed in complete]) for domain in table.domains
    ]
    known = [samples for samples in of_domains if samples is not None]
    if AVERAGE in row.cells and row.cells[AVERAGE].count == len(complete) and len(known) == len(table.domains):
        found[AVERAGE] = _ends(np.mean(known, axis=0))
    return found


def _of_seeds(row: TableRow, role: str) -> dict[int, dict[str, Predictions]]:
    """Returns the predictions of a row's runs; the last of several that measured the same counts."""
    found: dict[int, dict[str, Predictions]] = {}
    for record in row.records:
        seed = record.seed if row.is_trained else 0
        found.setdefault(seed, {}).update(_of_role(record, LAST_ROW if row.is_trained else ZERO_SHOT_ROW, role))
    return found


def _of_role(record: Record, row: str, role: str) -> dict[str, Predictions]:
    by_split = record.predictions.get(row, {})
    start = f"{role}/"
    return {name.removeprefix(start): each for name, each in by_split.items() if name.startswith(start)}


def _count(of_seeds: OfSeeds, domains: Iterable[str]) -> int:
    return sum(set(domains) <= set(of_seed) for of_seed in of_seeds.values())


def _samples(split: str, of_seeds: Sequence[Predictions]) -> Samples | None:
    """Returns the mean accuracy over seeds of each resample; None if they did not measure the same images alike."""
    if not of_seeds:
        return None
    first = of_seeds[0]
    for other in of_seeds:
        if not torch.equal(other.labels, first.labels) or len(other.predicted) != len(first.predicted):
            return None
    together = stack(of_seeds, ())
    num_classes = 1 + int(max(together.labels.max(), together.predicted.max()))
    return resample(together, num_classes, split)["accuracy"]


def _ends(samples: Samples) -> Interval:
    low, high = interval(samples)
    return low, high
