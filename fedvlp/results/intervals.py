"""How far a table's cells rest on the images that happened to be measured: bootstrap intervals over images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch

from fedvlp.core.metrics.bootstrap import Samples, interval, resample
from fedvlp.core.predictions import Predictions, stack
from fedvlp.results.compare import Table, TableRow
from fedvlp.results.confusion import LAST_ROW, ZERO_SHOT_ROW
from fedvlp.results.statistics import AVERAGE, Cell, Interval

OfSeeds = Mapping[int, Mapping[str, Predictions]]
"""By seed and then by split."""


def with_intervals(table: Table) -> Table:
    """Returns the table with intervals of the cells of last rounds and of zero-shot CLIP, where images are known."""
    return replace(table, rows=tuple(replace(row, intervals=intervals(table, row)) for row in table.rows))


def intervals(table: Table, row: TableRow) -> dict[str, Interval]:
    """Returns the 95 % percentile intervals of a row's mean accuracies, by column and for the average.

    Images are drawn with what every seed took them for, since all seeds measure the same ones: more seeds do not make
    more images. Domains are drawn independently. What lacks a run's predictions, or has other images for another seed,
    has no interval, nor has what is no mean of accuracies.
    """
    if row.selection not in ("last", "both", ""):
        return {}
    of_seeds = _of_seeds(row)
    measure = table.measure
    metrics = {column: measure.columns.get(column, f"{measure.role}/{column}") for column in table.domains}
    found = {column: _interval(of_seeds, [metric], row.cells.get(column)) for column, metric in metrics.items()}
    averaged = [measure.role] if measure.columns else list(metrics.values())
    found[AVERAGE] = _interval(of_seeds, averaged, row.cells.get(AVERAGE))
    return {column: ends for column, ends in found.items() if ends is not None}


def _of_seeds(row: TableRow) -> dict[int, dict[str, Predictions]]:
    """Returns the predictions of a row's runs; the last of several that measured the same counts."""
    found: dict[int, dict[str, Predictions]] = {}
    for record in row.records:
        seed = record.seed if row.is_trained else 0
        title = LAST_ROW if row.is_trained else ZERO_SHOT_ROW
        found.setdefault(seed, {}).update(record.predictions.get(title, {}))
    return found


def _interval(of_seeds: OfSeeds, metrics: Sequence[str], cell: Cell | None) -> Interval | None:
    """Returns the interval of a cell, the mean over some splits or over all those of a role.

    Args:
        of_seeds: the predictions.
        metrics: names of splits, or of roles.
        cell: what the interval is of, by as many seeds.
    """
    complete = [of_seed for of_seed in of_seeds.values() if _has_all(of_seed, metrics)]
    if cell is None or cell.count != len(complete):
        return None
    names = list(chain.from_iterable(_splits(complete[0], metric) for metric in metrics))
    if any(not set(names) <= set(of_seed) for of_seed in complete):
        return None
    samples = []
    for name in names:
        samples.append(_samples(name, [of_seed[name] for of_seed in complete]))
    known = [each for each in samples if each is not None]
    if len(known) < len(samples):
        return None
    low, high = interval(np.mean(known, axis=0))
    return low, high


def _has_all(of_seed: Mapping[str, Predictions], metrics: Sequence[str]) -> bool:
    return all(_splits(of_seed, metric) for metric in metrics)


def _splits(of_seed: Mapping[str, Predictions], metric: str) -> list[str]:
    """Returns the splits that a metric is the mean of; none of what is computed otherwise."""
    return [name for name in of_seed if name == metric or name.startswith(f"{metric}/")]


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
