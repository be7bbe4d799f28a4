"""Tables of runs: mean and standard deviation over seeds, by method, round and column."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedvlp.core.balance import COLUMNS, TAIL, is_imbalanced
from fedvlp.core.predictions import (
    LABEL_COLUMNS,
    TWO_CLASSES,
    Predictions,
    calibration_errors,
    interval,
    resample,
    stack,
)
from fedvlp.core.roles import BASELINES, Protocol
from fedvlp.results.record import BEST_ROW, CLASS_MEANS_ROW, COSTS, LAST_ROW, ZERO_SHOT_ROW, Record, runs_frame
from fedvlp.results.rounds import best_round, is_accuracy
from fedvlp.tools.compare.grouping import describe_records, find_protocol, group_records, row_labels

ZERO_SHOT = "ZeroShotCLIP"
AVERAGE = "average"
SPREAD = "spread"
GAP = "gap to last"

LAST = "last"
BEST = "best"
ORACLE = "oracle, not allowed"
UNTRAINED = "-"
ROUNDS = {LAST_ROW: LAST, BEST_ROW: BEST, ORACLE: ORACLE} | dict.fromkeys(BASELINES.values(), UNTRAINED)
"""Names of rounds in tables, by the row's title in a run."""

CELL = ["method", "round", "column"]
SEED = ["method", "round", "seed"]
"""Index levels of a table's cells, and of the accuracies of single seeds."""

Row = tuple[str, str]
"""A method's label and its round: last, best, oracle, or "-" for untrained baselines."""


class Cell(NamedTuple):
    """A number over ``n`` seeds.

    Attributes:
        std: Sample standard deviation (n - 1); NaN for a single seed.
        low, high: 95 % bootstrap interval over images; NaN if it was not computed.
    """

    mean: float
    std: float
    n: int
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Table:
    """Comparable results.

    Attributes:
        columns: All evaluated domains, or the protocol's own columns.
        num_columns: Number of columns of a complete evaluation; 0 if the runs do not record it.
        cells: The fields of a ``Cell`` for each ``method``, ``round`` and ``column``. In addition to ``columns`` there
            are ``AVERAGE``, which ranks rows, ``COLUMNS`` for imbalanced classes, ``TAIL``,
            ``TWO_CLASSES`` or ``LABEL_COLUMNS``, ``SPREAD`` over domains, and the oracle's ``GAP``.
        runs: The runs of each method.
    """

    records: tuple[Record, ...]
    protocol: Protocol
    columns: tuple[str, ...]
    num_columns: int
    cells: pd.DataFrame
    runs: Mapping[str, tuple[Record, ...]]

    @cached_property
    def about(self) -> dict[str, str]:
        """Settings shared by the runs, by name."""
        return describe_records(self.records)

    @property
    def rows(self) -> list[Row]:
        """Method and round of each row, in order."""
        return list(self.cells.index.droplevel("column").unique())

    @property
    def role(self) -> str:
        """The metric that ranks rows, such as ``held_out``, ``test`` or ``validation``."""
        return self.protocol.role

    @property
    def resampled(self) -> str:
        """What intervals draw: images, or groups of images."""
        splits = (split for run in self.records for row in run.metrics.values() for split in row.values())
        return "groups" if any("groups" in scores for scores in splits) else "images"

    @property
    def is_whole(self) -> bool:
        """Whether every domain of the data set has a column."""
        return self.num_columns in (0, len(self.columns))

    @property
    def average_title(self) -> str:
        """Title of the column that ranks rows: the average, marked if domains are missing, or the protocol's own."""
        part = "" if self.is_whole else f" of {len(self.columns)} of {self.num_columns}"
        return self.protocol.mean or AVERAGE + part

    @property
    def seeds(self) -> list[int]:
        """The seeds of all runs that trained."""
        return sorted({run.seed for run in self.records if run.method != ZERO_SHOT})

    @property
    def compared_rows(self) -> list[Row]:
        """The last rounds and baselines with an average, i.e. of methods that were evaluated on all domains."""
        return [row for row in self.rows if row[1] in (LAST, UNTRAINED) and self.cell(row) is not None]

    def sort_rows(self) -> "Table":
        """Sort rows by the average of their method, highest first, with missing averages at the end."""
        cells = self.cells.reset_index()
        # A method is ranked by its first row, which is the last round if that is shown.
        first_rows = cells.drop_duplicates("method")[["method", "round"]]
        averages = first_rows.merge(cells[cells["column"] == AVERAGE], how="left").set_index("method")["mean"]
        methods = averages.sort_values(ascending=False, kind="stable", na_position="last").index
        order = cells["method"].map(methods.get_loc).argsort(kind="stable")
        return replace(self, cells=cells.iloc[order].set_index(CELL))

    def cell(self, row: Row, column: str = AVERAGE) -> Cell | None:
        """Look up a cell, by default the one that ranks rows; None if it was not evaluated."""
        key = (*row, column)
        if key not in self.cells.index:
            return None
        mean, std, n, low, high = self.cells.loc[key]
        return Cell(float(mean), float(std), int(n), float(low), float(high))

    def mean_interval(
        self, row: Row, metrics: Sequence[str], num_seeds: int, score: str = "accuracy"
    ) -> Sequence[float]:
        """Compute the interval of a row's mean score over splits or roles; NaN if a seed lacks a split."""
        # If several runs evaluated the same images, the last run counts.
        by_seed: dict[int, dict[str, Predictions]] = {}
        for record in self.runs[row[0]]:
            predictions = by_seed.setdefault(0 if row[1] == UNTRAINED else record.seed, {})
            predictions.update(record.predictions.get(row_title(row), {}))
        complete = list(by_seed.values())
        for metric in metrics:
            complete = [splits for splits in complete if _splits(splits, metric)]
        if len(complete) != num_seeds:
            return math.nan, math.nan
        samples = []
        for metric in metrics:
            for split in _splits(complete[0], metric):
                by_split = [splits[split] for splits in complete if split in splits]
                # Seeds are drawn together only if they have the same images in the same order and equally many states.
                groups = {each.groups is not None and each.groups.tobytes() for each in by_split}
                kinds = {(each.labels.tobytes(), each.predicted.shape) for each in by_split}
                if len(by_split) < num_seeds or len(kinds) > 1 or len(groups) > 1:
                    return math.nan, math.nan
                # Stacked like states of one model, so that each image is drawn with the predictions of all seeds.
                stacked = stack(by_split, ())
                num_classes = 1 + int(max(stacked.labels.max(), stacked.predicted.max()))
                if score == "calibration_error":
                    samples.append(calibration_errors(stacked, split)[1:])
                else:
                    samples.append(resample(stacked, num_classes, split)[score])
        return interval(np.mean(samples, axis=0))


def tables(records: Sequence[Record], rounds: Sequence[str] = (LAST, BEST)) -> list[Table]:
    """Make a table for each group of comparable runs, with rows for ``rounds`` (LAST, BEST or ORACLE).

    A method has an ORACLE row only if all its runs have a ``metrics.csv``.
    """
    return [_table(group, rounds) for group in group_records(records)]


def _table(records: tuple[Record, ...], rounds: Sequence[str]) -> Table:
    protocol = find_protocol(records[0])
    # First one row per run, round and split; then one row per seed with the table's columns; then the cells.
    frame, runs = _label_rows(records, rounds, protocol.role)
    scores = _merge_equal_seeds(_select_compared(frame[frame["round"].isin([UNTRAINED, *rounds])], protocol))
    # The runs of one seed hold out different domains and fill one row together; for duplicates the last run counts.
    scores = scores.drop_duplicates([*SEED, "column"], keep="last")
    by_seed = scores.set_index([*SEED, "column"])["accuracy"].unstack("column")
    columns = [title for title in (protocol.columns or sorted(by_seed.columns)) if title in by_seed.columns]
    if columns and not protocol.columns:
        complete = by_seed[columns].notna().all(axis=1)
        # Average over domains first, so that the deviation is between seeds.
        by_seed[AVERAGE] = by_seed[columns].mean(axis=1).where(complete)
        by_seed[SPREAD] = by_seed[columns].std(axis=1, ddof=0).where(complete & (len(columns) > 1))
    role = protocol.scored_role
    is_shown = any(is_imbalanced(each[role]) for run in records for each in run.balance.values() if role in each)
    titles = {metric: [title] for title, metric in protocol.columns.items()}
    shown = (COLUMNS if is_shown else {}) | (TAIL if scores["head_accuracy"].notna().any() else {})
    if scores["class_auroc"].notna().any():
        shown = LABEL_COLUMNS if records[0].has_several_labels else shown | TWO_CLASSES
    for title, score in shown.items():
        by_column = scores.set_index([*SEED, "column"])[score].unstack("column")
        scored = titles.get(role, [AVERAGE]) if protocol.columns else columns
        by_seed[title] = by_column[scored].mean(axis=1, skipna=False)
    if ORACLE in rounds and AVERAGE in by_seed:
        # Pair rounds by seed, so that the deviation is between differences.
        averages = by_seed[AVERAGE].unstack("round").reindex(columns=[LAST, ORACLE])
        gaps = (averages[ORACLE] - averages[LAST]).rename(GAP).to_frame().assign(round=ORACLE)
        by_seed = by_seed.join(gaps.set_index("round", append=True).reorder_levels(SEED))
    # Domains can be missing, because each needs its own run; a protocol's own columns are always complete.
    data = records[0].data
    expected = () if protocol.columns else data.get("targets", data.get("domains", ()))
    in_order = [*columns, AVERAGE, *COLUMNS, *TAIL, *TWO_CLASSES, *LABEL_COLUMNS, SPREAD, GAP]
    order = {"method": list(runs), "round": [UNTRAINED, *rounds], "column": in_order}
    return Table(records, protocol, tuple(columns), len(expected), _average_seeds(by_seed, order), runs)


def _label_rows(
    records: Sequence[Record], rounds: Sequence[str], role: str
) -> tuple[pd.DataFrame, dict[str, tuple[Record, ...]]]:
    zero_shot = {record.settings: _zero_shot_label(record) for record in records}
    labels = zero_shot | row_labels(record for record in records if record.method != ZERO_SHOT)
    runs: dict[str, tuple[Record, ...]] = {}
    with_oracle = []
    for record in records:
        # The oracle is an additional row of the run. Source validation may select rounds, so it has no oracle.
        best = best_round(record.history, role) if ORACLE in rounds and role != "validation" else None
        oracle = {ORACLE: {name: value for name, value in best.items() if is_accuracy(name)}} if best else {}
        with_oracle.append(replace(record, accuracy={**record.accuracy, **oracle}))
        # A run without evaluation has no row, but a note below the table names its method.
        baselines = [zero_shot[record.settings]] if record.baseline else []
        baselines += [CLASS_MEANS_ROW] if CLASS_MEANS_ROW in record.accuracy else []
        for label in dict.fromkeys([*baselines, labels[record.settings]]):
            runs[label] = (*runs.get(label, ()), record)
    frame = runs_frame(with_oracle)
    frame["round"] = frame["row"].map(ROUNDS).mask(frame["method"] == ZERO_SHOT, UNTRAINED)
    # Each run evaluates the baselines too, so these rows get the label of the baseline.
    baseline_labels = frame["settings"].map(zero_shot).mask(frame["row"] == CLASS_MEANS_ROW, CLASS_MEANS_ROW)
    frame["method"] = frame["settings"].map(labels).mask(frame["round"] == UNTRAINED, baseline_labels)
    # A method with an incomplete history has no oracle, since its mean would be over fewer runs.
    if ORACLE in rounds:
        for label, members in runs.items():
            if not all(record.history for record in members):
                frame = frame[(frame["round"] != ORACLE) | (frame["method"] != label)]
    # Baselines first: zero-shot CLIP, then class means.
    order = sorted(runs, key=lambda label: (not label.startswith(ZERO_SHOT_ROW), label != CLASS_MEANS_ROW))
    return frame, {label: runs[label] for label in order}


def row_title(row: Row) -> str:
    """Look up a row's title in its runs, without the round's number."""
    if row[1] != UNTRAINED:
        return {LAST: LAST_ROW, BEST: BEST_ROW}[row[1]]
    return CLASS_MEANS_ROW if row[0] == CLASS_MEANS_ROW else ZERO_SHOT_ROW


def _select_compared(frame: pd.DataFrame, protocol: Protocol) -> pd.DataFrame:
    is_mean = frame["domain"] == ""
    # Some protocols compare the means of several roles; the others compare the domains of one role.
    if protocol.columns:
        titles = {metric: title for title, metric in protocol.columns.items()} | {protocol.role: AVERAGE}
        return frame.assign(column=frame["role"].map(titles))[is_mean].dropna(subset=["column"])
    return frame.assign(column=frame["domain"])[~is_mean & (frame["role"] == protocol.role)]


def _zero_shot_label(record: Record) -> str:
    """Label a run's zero-shot CLIP; only runs of the method ZeroShotCLIP can use several templates."""
    templates = record.options.get("templates", 1) if record.method == ZERO_SHOT else 1
    return ZERO_SHOT_ROW if templates == 1 else f"{ZERO_SHOT_ROW}, {templates} templates"


def _merge_equal_seeds(scores: pd.DataFrame) -> pd.DataFrame:
    is_untrained = scores["round"] == UNTRAINED
    distinct = scores[is_untrained].groupby(["method", "column"])["accuracy"].nunique().groupby("method").max()
    return scores.assign(seed=scores["seed"].mask(is_untrained & (scores["method"].map(distinct) == 1), 0))


def _average_seeds(by_seed: pd.DataFrame, order: Mapping[str, list[str]]) -> pd.DataFrame:
    long = by_seed.reset_index().melt(SEED, var_name="column", value_name="accuracy")
    groups = long.dropna(subset=["accuracy"]).groupby(CELL)["accuracy"]
    # pandas divides by n - 1, so a single seed has the deviation NaN.
    cells = groups.agg(mean="mean", std="std", n="count").assign(low=float("nan"), high=float("nan"))
    return cells.sort_index(key=lambda level: level.map(order[str(level.name)].index))


def costs(records: Sequence[Record]) -> dict[str, int]:
    """Compute the maximum that a client sends and receives in a round; empty for centralised runs."""
    counts = [run.communication for run in records if run.communication and not run.is_centralised]
    return {name: max(count[name] for count in counts) for name in COSTS} if counts else {}


def add_intervals(table: Table) -> Table:
    """Add 95 % percentile intervals to last rounds and baselines.

    All seeds are evaluated on the same images, so each image or group is drawn with the predictions of all seeds.
    Domains are drawn independently. A cell has no interval if predictions are missing, if seeds were evaluated on
    different images or groups, or if it is not a mean of accuracies.
    """
    protocol = table.protocol
    metrics = {column: [protocol.columns.get(column, f"{protocol.role}/{column}")] for column in table.columns}
    metrics[AVERAGE] = (
        [protocol.role] if protocol.columns else [f"{protocol.role}/{column}" for column in table.columns]
    )
    cells = table.cells.copy()
    for row in table.rows:
        for column, column_metrics in metrics.items() if row[1] in (LAST, UNTRAINED) else ():
            cell = table.cell(row, column)
            if cell is not None:
                cells.loc[(*row, column), ["low", "high"]] = table.mean_interval(row, column_metrics, cell.n)
    return replace(table, cells=cells)


def _splits(predictions: Mapping[str, Predictions], metric: str) -> list[str]:
    return [name for name in predictions if name == metric or name.startswith(f"{metric}/")]
