"""Tables of runs: mean and standard deviation over seeds, for each method, reported round and column."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from fedvlp.core.metrics import Samples, interval, resample
from fedvlp.core.predictions import Predictions, stack
from fedvlp.results.frame import COLUMNS, runs_frame
from fedvlp.results.grouping import Group, Measure, group_records, measure_of, row_labels
from fedvlp.results.record import BEST_ROW, COSTS, LAST_ROW, ZERO_SHOT_ROW, Record
from fedvlp.results.selection import is_accuracy, oracle_round

ZERO_SHOT = "ZeroShotCLIP"
AVERAGE = "average"
SPREAD = "spread"
GAP = "gap to last"

LAST = "last"
BEST = "best"
BOTH = "last, best"
ORACLE = "oracle, not allowed"
UNTRAINED = "-"
ROUNDS = {LAST_ROW: LAST, BEST_ROW: BEST, ORACLE: ORACLE, ZERO_SHOT_ROW: UNTRAINED}
"""What a table calls the round of each row of a run."""

BySeed = Mapping[int, Mapping[str, Predictions]]
"""Predictions by seed and then by split."""

Row = tuple[str, str]
"""The label of a method, and its round: last, best, both if they are equal, the oracle's, or "-" without training."""


class Cell(NamedTuple):
    """A number over several seeds.

    Attributes:
        mean: over seeds.
        std: sample standard deviation (n - 1); NaN for a single seed.
        n: number of seeds.
        low, high: 95 % interval of a bootstrap over images; NaN where it was not computed.
    """

    mean: float
    std: float
    n: int
    low: float
    high: float


@dataclass(frozen=True)
class Table:
    """Results that may be compared.

    Attributes:
        group: the runs, and what they have in common.
        measure: what the cells are.
        columns: all domains on which a run was measured, or what the protocol measures in their place.
        num_columns: how many there are if everything was measured; 0 if the runs do not say.
        cells: for each ``method``, ``round`` and ``column`` the fields of a ``Cell``. Beside ``columns`` there are
            ``AVERAGE``, which rows are ranked by, ``SPREAD`` over domains, and the oracle's ``GAP``.
        by_seed: for each ``method``, ``round`` and ``seed`` the accuracies in percent, with the same columns.
        runs: the runs of each method.
    """

    group: Group
    measure: Measure
    columns: tuple[str, ...]
    num_columns: int
    cells: pd.DataFrame
    by_seed: pd.DataFrame
    runs: Mapping[str, tuple[Record, ...]]

    @property
    def rows(self) -> list[Row]:
        """Method and round of each row, in their order."""
        return list(dict.fromkeys((method, name) for method, name, _ in self.cells.index))

    @property
    def role(self) -> str:
        """The metric that rows are ranked by, such as ``held_out``, ``test`` or ``validation``."""
        return self.measure.role

    @property
    def is_whole(self) -> bool:
        """Whether every domain of the data set has a column."""
        return self.num_columns in (0, len(self.columns))

    @property
    def average_title(self) -> str:
        """What rows are ranked by: the average, marked if it is not over all domains, or the measure's own name."""
        if self.measure.title:
            return self.measure.title
        return AVERAGE if self.is_whole else f"{AVERAGE} of {len(self.columns)} of {self.num_columns}"

    @property
    def seeds(self) -> list[int]:
        """The seeds of all runs that trained."""
        return sorted({run.seed for run in self.group.records if run.method != ZERO_SHOT})

    def cell(self, row: Row, column: str) -> Cell | None:
        """Returns a cell; None where nothing was measured."""
        key = (*row, column)
        if key not in self.cells.index:
            return None
        mean, std, n, low, high = self.cells.loc[key]
        return Cell(float(mean), float(std), int(n), float(low), float(high))


def tables(records: Sequence[Record], rounds: Sequence[str] = (LAST, BEST)) -> list[Table]:
    """Returns a table for each group of runs that may be compared.

    Args:
        records: the runs.
        rounds: which of LAST, BEST and ORACLE have a row. The oracle has one for methods all of whose runs have a
            ``metrics.csv``.
    """
    return [_table(group, rounds) for group in group_records(records)]


def _table(group: Group, rounds: Sequence[str]) -> Table:
    measure = measure_of(group.records[0])
    # One row for each run, round and split; then for each seed, with columns as in the table; then over seeds.
    frame, runs = _labelled(group.records, rounds, measure.role)
    scores = _merge_equal_seeds(_compared(frame[frame["round"].isin([UNTRAINED, *rounds])], measure))
    # A seed's runs, each with other held-out domains, fill one row between them; of equal ones the last counts.
    scores = scores.drop_duplicates(["method", "round", "seed", "column"], keep="last")
    seeds = scores.set_index(["method", "round", "seed", "column"])["accuracy"].unstack("column")
    columns = [title for title in (measure.columns or sorted(seeds.columns)) if title in seeds.columns]
    if not measure.columns:
        complete = seeds[columns].notna().all(axis=1)
        # Over domains first, so that the deviation of the average is that between seeds.
        seeds[AVERAGE] = seeds[columns].mean(axis=1).where(complete)
        seeds[SPREAD] = seeds[columns].std(axis=1, ddof=0).where(complete & (len(columns) > 1))
    if ORACLE in rounds and AVERAGE in seeds:
        # Paired by seed, so that its deviation is that of the difference.
        seeds[GAP] = _gaps(seeds[AVERAGE])
    data = group.records[0].data
    every = () if measure.columns else data.get("targets", data.get("domains", ()))
    place = {"method": list(runs), "round": [UNTRAINED, *rounds], "column": [*columns, AVERAGE, SPREAD, GAP]}
    return Table(group, measure, tuple(columns), len(every), _over_seeds(seeds, place), seeds, runs)


def _labelled(
    records: Sequence[Record], rounds: Sequence[str], role: str
) -> tuple[pd.DataFrame, dict[str, tuple[Record, ...]]]:
    """Returns ``runs_frame`` with the labels of methods and the names of rounds, and the runs of each method."""
    labels = row_labels(record for record in records if record.method != ZERO_SHOT)
    runs: dict[str, tuple[Record, ...]] = {}
    rows: list[dict[Hashable, Any]] = []
    for record in records:
        # The oracle is one more row of the run, so that all that follows treats it as the others.
        oracle = _oracle(record, role) if ORACLE in rounds else {}
        frame = runs_frame([replace(record, accuracy={**record.accuracy, **oracle})])
        frame["round"] = UNTRAINED if record.method == ZERO_SHOT else frame["row"].map(ROUNDS)
        # Every run measures zero-shot CLIP itself, so these rows are of another method than the run.
        zero_shot = _zero_shot_label(record)
        method = labels.get(record.settings, zero_shot)
        frame["method"] = frame["round"].map({UNTRAINED: zero_shot}).fillna(method)
        # A run that was never evaluated has no row here, but its method is still named below the table.
        for label in dict.fromkeys([*frame["method"], method]):
            runs[label] = (*runs.get(label, ()), record)
        rows += frame.to_dict("records")
    frame = pd.DataFrame(rows, columns=[*COLUMNS, "round"])
    # A method whose rounds are not all known has no oracle: its mean would be over fewer runs.
    incomplete = set()
    for label, of_method in runs.items():
        if not all(record.history for record in of_method):
            incomplete.add(label)
    frame = frame[(frame["round"] != ORACLE) | ~frame["method"].isin(incomplete)]
    return frame, {label: runs[label] for label in sorted(runs, key=lambda each: not each.startswith(ZERO_SHOT_ROW))}


def _oracle(record: Record, role: str) -> dict[str, dict[str, float]]:
    """Returns the accuracies of the round that was best on the compared images, as a row of a record."""
    # Source validation may choose, so there is no oracle of it.
    best = None if role == "validation" else oracle_round(record.history, role)
    return {} if best is None else {ORACLE: {name: value for name, value in best.items() if is_accuracy(name)}}


def _compared(frame: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Returns the accuracies that are compared, with the titles of their columns."""
    is_mean = frame["domain"] == ""
    # Some protocols compare means of several roles, the others each domain of one role.
    if measure.columns:
        titles = {metric: title for title, metric in measure.columns.items()} | {measure.role: AVERAGE}
        return frame[is_mean].assign(column=frame["role"].map(titles)).dropna(subset=["column"])
    return frame[~is_mean & (frame["role"] == measure.role)].assign(column=frame["domain"])


def _zero_shot_label(record: Record) -> str:
    """Returns the label of the zero-shot CLIP that a run measured; every run measures that of one template."""
    templates = int(record.options.get("templates", 1)) if record.method == ZERO_SHOT else 1
    return ZERO_SHOT_ROW if templates == 1 else f"{ZERO_SHOT_ROW}, {templates} templates"


def _merge_equal_seeds(scores: pd.DataFrame) -> pd.DataFrame:
    """Puts zero-shot CLIP under one seed where all seeds measured the same, as they do on the same images."""
    untrained = scores[scores["round"] == UNTRAINED]
    distinct = untrained.groupby(["method", "column"])["accuracy"].nunique().groupby("method").max()
    is_equal = (scores["round"] == UNTRAINED) & (scores["method"].map(distinct) == 1)
    return scores.assign(seed=scores["seed"].mask(is_equal, 0))


def _gaps(averages: pd.Series) -> pd.Series:
    """Returns by how many points each seed's oracle is above its last round."""
    # The last rounds take the oracle's name for a moment, so that pandas aligns both by method and seed.
    is_oracle = averages.index.get_level_values("round") == ORACLE
    last = averages.rename(index={LAST: ORACLE}, level="round")[averages.index.get_level_values("round") == LAST]
    return averages[is_oracle] - last


def _over_seeds(seeds: pd.DataFrame, place: Mapping[str, list[str]]) -> pd.DataFrame:
    """Returns the cells: mean, deviation and number of seeds, sorted by the places of methods, rounds and columns."""
    long = seeds.reset_index().melt(["method", "round", "seed"], var_name="column", value_name="accuracy")
    groups = long.dropna(subset=["accuracy"]).groupby(["method", "round", "column"])["accuracy"]
    # pandas takes n - 1 for the deviation, and NaN where there is one seed.
    cells = groups.agg(mean="mean", std="std", n="count").assign(low=float("nan"), high=float("nan"))
    return cells.sort_index(key=lambda level: level.map(place[str(level.name)].index))


def costs(records: Sequence[Record]) -> dict[str, tuple[int, int]]:
    """Returns what one client sends and receives in one round, the least and the most of the runs; none if pooled."""
    ranges = {}
    for name in COSTS:
        values = [run.communication[name] for run in records if run.communication and not run.is_centralised]
        if values:
            ranges[name] = (min(values), max(values))
    return ranges


def ranking(table: Table) -> pd.DataFrame:
    """Returns the average cells of last rounds and zero-shot CLIP, the highest first.

    Rows that lack a domain have no average, so they are not ranked.
    """
    is_average = table.cells.index.get_level_values("column") == AVERAGE
    averages = table.cells[is_average].droplevel("column")
    compared = averages[averages.index.get_level_values("round").isin([LAST, BOTH, UNTRAINED])]
    return compared.sort_values("mean", ascending=False, kind="stable")


def ranked(table: Table) -> Table:
    """Returns the table with the highest average first, and rows without an average at the end.

    A method's last round and its best on source validation become one row where they are equal.
    """
    averages: dict[str, float] = {}
    for row in table.rows:
        average = table.cell(row, AVERAGE)
        averages.setdefault(row[0], float("-inf") if average is None else average.mean)
    methods = sorted(averages, key=lambda method: -averages[method])
    cells = table.cells.reset_index()
    cells = cells.iloc[cells["method"].map(methods.index).argsort(kind="stable")]
    for method in methods:
        if _last_is_best(table.cells, method):
            of_method = cells["method"] == method
            cells = cells[~(of_method & (cells["round"] == BEST))]
            cells["round"] = cells["round"].mask(of_method & (cells["round"] == LAST), BOTH)
    return replace(table, cells=cells.set_index(["method", "round", "column"]))


def _last_is_best(cells: pd.DataFrame, method: str) -> bool:
    values = cells.loc[[method], ["mean", "std", "n"]].droplevel("method")
    rounds = values.index.get_level_values("round")
    last = values[rounds == LAST].droplevel("round")
    best = values[rounds == BEST].droplevel("round")
    return bool(len(best)) and last.equals(best)


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
    # An interval of fewer seeds than the mean would be one of another number.
    complete = []
    for of_seed in by_seed.values():
        if all(_splits(of_seed, metric) for metric in metrics):
            complete.append(of_seed)
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
    # Stacked as states of one model, the predictions of all seeds are drawn together with their image.
    stacked = stack(predictions, ())
    num_classes = 1 + int(max(stacked.labels.max(), stacked.predicted.max()))
    return resample(stacked, num_classes, split)["accuracy"]
