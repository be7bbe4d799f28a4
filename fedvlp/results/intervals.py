"""How far a table's cells depend on the images that were measured: bootstrap intervals over images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from fedvlp.core.metrics.bootstrap import Samples, interval, resample
from fedvlp.core.predictions import Predictions, stack
from fedvlp.results.record import LAST_ROW, ZERO_SHOT_ROW
from fedvlp.results.tables import AVERAGE, BOTH, LAST, UNTRAINED, Row, Table

BySeed = Mapping[int, Mapping[str, Predictions]]
"""By seed and then by split."""


def with_intervals(table: Table) -> Table:
    """Returns the table with 95 % percentile intervals of last rounds and zero-shot CLIP, where predictions are known.

    Images are drawn with the predictions of every seed, since all seeds measure the same ones: more seeds do not make
    more images. Domains are drawn independently. A cell has no interval where a run's predictions are missing, where
    seeds measured other images, or where it is no mean of accuracies.
    """
    cells = table.cells.copy()
    for row in table.rows:
        for column, ends in intervals(table, row).items():
            cells.loc[(*row, column), ["low", "high"]] = ends
    return replace(table, cells=cells)


def intervals(table: Table, row: Row) -> dict[str, list[float]]:
    """Returns the lower and the upper end of a row's cells, by column and for the average."""
    if row[1] not in (LAST, BOTH, UNTRAINED):
        return {}
    by_seed = _by_seed(table, row)
    measure = table.measure
    metrics = {column: [measure.columns.get(column, f"{measure.role}/{column}")] for column in table.columns}
    average = [measure.role] if measure.columns else [metric for (metric,) in metrics.values()]
    ends = {}
    for column, of_column in {**metrics, AVERAGE: average}.items():
        cell = table.cell(row, column)
        samples = None if cell is None else _samples(by_seed, of_column, cell.n)
        if samples is not None:
            ends[column] = interval(samples)
    return ends


def _by_seed(table: Table, row: Row) -> dict[int, dict[str, Predictions]]:
    """Returns the predictions of a row's runs; the last of several that measured the same counts."""
    is_trained = row[1] != UNTRAINED
    by_seed: dict[int, dict[str, Predictions]] = {}
    for record in table.runs[row[0]]:
        of_seed = by_seed.setdefault(record.seed if is_trained else 0, {})
        of_seed.update(record.predictions.get(LAST_ROW if is_trained else ZERO_SHOT_ROW, {}))
    return by_seed


def _samples(by_seed: BySeed, metrics: Sequence[str], num_seeds: int) -> Samples | None:
    """Returns the mean over the splits of some metrics of each resample; None if a seed lacks one.

    Args:
        by_seed: the predictions.
        metrics: names of splits, or of roles, which are the mean over their splits.
        num_seeds: how many seeds the cell is of.
    """
    complete = [of_seed for of_seed in by_seed.values() if all(_splits(of_seed, metric) for metric in metrics)]
    if len(complete) != num_seeds:
        return None
    samples = []
    for metric in metrics:
        for split in _splits(complete[0], metric):
            of_split = _samples_of_split(split, [of_seed.get(split) for of_seed in complete])
            if of_split is None:
                return None
            samples.append(of_split)
    mean: Samples = np.mean(samples, axis=0)
    return mean


def _splits(of_seed: Mapping[str, Predictions], metric: str) -> list[str]:
    return [name for name in of_seed if name == metric or name.startswith(f"{metric}/")]


def _samples_of_split(split: str, by_seed: Sequence[Predictions | None]) -> Samples | None:
    """Returns the mean accuracy over seeds of each resample; None if they did not measure the same images alike."""
    first = by_seed[0]
    predictions = [each for each in by_seed if each is not None]
    if first is None or len(predictions) < len(by_seed):
        return None
    for other in predictions:
        if not torch.equal(other.labels, first.labels) or len(other.predicted) != len(first.predicted):
            return None
    stacked = stack(predictions, ())
    num_classes = 1 + int(max(stacked.labels.max(), stacked.predicted.max()))
    return resample(stacked, num_classes, split)["accuracy"]
