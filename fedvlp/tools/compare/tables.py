"""Tables of runs: mean and standard deviation over seeds, for each method, reported round and column."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedvlp.core.balance import COLUMNS, is_imbalanced
from fedvlp.core.predictions import Predictions, Samples, interval, resample, stack
from fedvlp.core.roles import BASELINES, Protocol
from fedvlp.results.record import BEST_ROW, CLASS_MEANS_ROW, COSTS, LAST_ROW, ZERO_SHOT_ROW, Record, runs_frame
from fedvlp.results.rounds import best_round, is_accuracy
from fedvlp.tools.compare.grouping import describe_records, group_records, protocol_of, row_labels

ZERO_SHOT = "ZeroShotCLIP"
AVERAGE = "average"
SPREAD = "spread"
GAP = "gap to last"

LAST = "last"
BEST = "best"
ORACLE = "oracle, not allowed"
UNTRAINED = "-"
ROUNDS = {LAST_ROW: LAST, BEST_ROW: BEST, ORACLE: ORACLE} | dict.fromkeys(BASELINES.values(), UNTRAINED)
"""What a table calls the round of each row of a run."""

CELL = ["method", "round", "column"]
SEED = ["method", "round", "seed"]
"""By what the cells of a table, and the accuracies of its seeds, are indexed."""

Row = tuple[str, str]
"""The label of a method, and its round: last, best, the oracle's, or "-" without training."""


class Cell(NamedTuple):
    """A number over ``n`` seeds.

    Attributes:
        std: Sample standard deviation (n - 1); NaN for a single seed.
        low, high: 95 % interval of a bootstrap over images; NaN if it was not computed.
    """

    mean: float
    std: float
    n: int
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Table:
    """Results that may be compared.

    Attributes:
        columns: All domains on which a run was measured, or the protocol's own columns.
        num_columns: Number of columns if everything was measured; 0 if the runs do not describe it.
        cells: The fields of a ``Cell`` for each ``method``, ``round`` and ``column``. Besides ``columns`` there are
            ``AVERAGE``, which ranks rows, ``COLUMNS`` for imbalanced classes, ``SPREAD`` over domains, and the
            oracle's ``GAP``.
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
        """Properties that the runs share, by name."""
        return describe_records(self.records)

    @property
    def rows(self) -> list[Row]:
        """Method and round of each row, in their order."""
        return list(self.cells.index.droplevel("column").unique())

    @property
    def role(self) -> str:
        """The metric that ranks rows, such as ``held_out``, ``test`` or ``validation``."""
        return self.protocol.role

    @property
    def is_whole(self) -> bool:
        """Whether every domain of the data set has a column."""
        return self.num_columns in (0, len(self.columns))

    @property
    def average_title(self) -> str:
        """Title of the number that ranks rows: the average, marked if it lacks domains, or the protocol's own."""
        part = "" if self.is_whole else f" of {len(self.columns)} of {self.num_columns}"
        return self.protocol.mean or AVERAGE + part

    @property
    def seeds(self) -> list[int]:
        """The seeds of all runs that trained."""
        return sorted({run.seed for run in self.records if run.method != ZERO_SHOT})

    def cell(self, row: Row, column: str) -> Cell | None:
        """Look up a cell; None if nothing was measured."""
        key = (*row, column)
        if key not in self.cells.index:
            return None
        mean, std, n, low, high = self.cells.loc[key]
        return Cell(float(mean), float(std), int(n), float(low), float(high))


def tables(records: Sequence[Record], rounds: Sequence[str] = (LAST, BEST)) -> list[Table]:
    """Make a table for each group of runs that may be compared, with rows of LAST, BEST or ORACLE.

    Only methods whose runs all have a ``metrics.csv`` have a row of the oracle.
    """
    return [_table(group, rounds) for group in group_records(records)]


def _table(records: tuple[Record, ...], rounds: Sequence[str]) -> Table:
    protocol = protocol_of(records[0])
    # One row for each run, round and split; then one for each seed, with the table's columns; then the cells.
    frame, runs = _labelled(records, rounds, protocol.role)
    scores = _merge_equal_seeds(_compared(frame[frame["round"].isin([UNTRAINED, *rounds])], protocol))
    # A seed's runs, each with other held-out domains, fill one row between them; of equal ones the last counts.
    scores = scores.drop_duplicates([*SEED, "column"], keep="last")
    by_seed = scores.set_index([*SEED, "column"])["accuracy"].unstack("column")
    columns = [title for title in (protocol.columns or sorted(by_seed.columns)) if title in by_seed.columns]
    if columns and not protocol.columns:
        complete = by_seed[columns].notna().all(axis=1)
        # Over domains first, so that the deviation of the average is that between seeds.
        by_seed[AVERAGE] = by_seed[columns].mean(axis=1).where(complete)
        by_seed[SPREAD] = by_seed[columns].std(axis=1, ddof=0).where(complete & (len(columns) > 1))
    role = protocol.scored_role
    is_shown = any(is_imbalanced(each[role]) for run in records for each in run.balance.values() if role in each)
    titles = {metric: [title] for title, metric in protocol.columns.items()}
    for title, score in COLUMNS.items() if is_shown else ():
        by_column = scores.set_index([*SEED, "column"])[score].unstack("column")
        scored = titles.get(role, [AVERAGE]) if protocol.columns else columns
        by_seed[title] = by_column[scored].mean(axis=1, skipna=False)
    if ORACLE in rounds and AVERAGE in by_seed:
        # Paired by seed, so that the deviation is the difference's.
        averages = by_seed[AVERAGE].unstack("round").reindex(columns=[LAST, ORACLE])
        gaps = (averages[ORACLE] - averages[LAST]).rename(GAP).to_frame().assign(round=ORACLE)
        by_seed = by_seed.join(gaps.set_index("round", append=True).reorder_levels(SEED))
    # A protocol's own columns are always all there, unlike domains, each of which is a run of its own.
    data = records[0].data
    every = () if protocol.columns else data.get("targets", data.get("domains", ()))
    order = {"method": list(runs), "round": [UNTRAINED, *rounds], "column": [*columns, AVERAGE, *COLUMNS, SPREAD, GAP]}
    return Table(records, protocol, tuple(columns), len(every), _over_seeds(by_seed, order), runs)


def _labelled(
    records: Sequence[Record], rounds: Sequence[str], role: str
) -> tuple[pd.DataFrame, dict[str, tuple[Record, ...]]]:
    """Add labels of methods and names of rounds to ``runs_frame``, and list the runs of each method."""
    zero_shot = {record.settings: _zero_shot_label(record) for record in records}
    labels = zero_shot | row_labels(record for record in records if record.method != ZERO_SHOT)
    runs: dict[str, tuple[Record, ...]] = {}
    with_oracle = []
    for record in records:
        # The oracle is one more row of the run. Source validation may choose a round, so it has no oracle.
        best = best_round(record.history, role) if ORACLE in rounds and role != "validation" else None
        oracle = {ORACLE: {name: value for name, value in best.items() if is_accuracy(name)}} if best else {}
        with_oracle.append(replace(record, accuracy={**record.accuracy, **oracle}))
        # A run that was never evaluated has no row, but its method is still named below the table.
        measured = [zero_shot[record.settings]] if record.baseline else []
        measured += [CLASS_MEANS_ROW] if CLASS_MEANS_ROW in record.accuracy else []
        for label in dict.fromkeys([*measured, labels[record.settings]]):
            runs[label] = (*runs.get(label, ()), record)
    frame = runs_frame(with_oracle)
    frame["round"] = frame["row"].map(ROUNDS).mask(frame["method"] == ZERO_SHOT, UNTRAINED)
    # Every run measures the baselines itself, so these rows are of another method than the run.
    of_baseline = frame["settings"].map(zero_shot).mask(frame["row"] == CLASS_MEANS_ROW, CLASS_MEANS_ROW)
    frame["method"] = frame["settings"].map(labels).mask(frame["round"] == UNTRAINED, of_baseline)
    # A method whose rounds are not all known has no oracle: its mean would be over fewer runs.
    if ORACLE in rounds:
        for label, members in runs.items():
            if not all(record.history for record in members):
                frame = frame[(frame["round"] != ORACLE) | (frame["method"] != label)]
    # Baselines first: zero-shot CLIP, then class means.
    order = sorted(runs, key=lambda label: (not label.startswith(ZERO_SHOT_ROW), label != CLASS_MEANS_ROW))
    return frame, {label: runs[label] for label in order}


def row_title(row: Row) -> str:
    """The title, without a round, of a table's row in its runs."""
    if row[1] != UNTRAINED:
        return {LAST: LAST_ROW, BEST: BEST_ROW}[row[1]]
    return CLASS_MEANS_ROW if row[0] == CLASS_MEANS_ROW else ZERO_SHOT_ROW


def _compared(frame: pd.DataFrame, protocol: Protocol) -> pd.DataFrame:
    """Select the accuracies that are compared, with the titles of their columns."""
    is_mean = frame["domain"] == ""
    # Some protocols compare means of several roles, the others each domain of one role.
    if protocol.columns:
        titles = {metric: title for title, metric in protocol.columns.items()} | {protocol.role: AVERAGE}
        return frame.assign(column=frame["role"].map(titles))[is_mean].dropna(subset=["column"])
    return frame.assign(column=frame["domain"])[~is_mean & (frame["role"] == protocol.role)]


def _zero_shot_label(record: Record) -> str:
    """The label of the zero-shot CLIP that a run measured; a run of another method uses one template."""
    templates = record.options.get("templates", 1) if record.method == ZERO_SHOT else 1
    return ZERO_SHOT_ROW if templates == 1 else f"{ZERO_SHOT_ROW}, {templates} templates"


def _merge_equal_seeds(scores: pd.DataFrame) -> pd.DataFrame:
    """Put a baseline under one seed if all seeds measured the same numbers."""
    is_untrained = scores["round"] == UNTRAINED
    distinct = scores[is_untrained].groupby(["method", "column"])["accuracy"].nunique().groupby("method").max()
    return scores.assign(seed=scores["seed"].mask(is_untrained & (scores["method"].map(distinct) == 1), 0))


def _over_seeds(by_seed: pd.DataFrame, order: Mapping[str, list[str]]) -> pd.DataFrame:
    """Compute mean, deviation and number of seeds, with methods, rounds and columns in an order."""
    long = by_seed.reset_index().melt(SEED, var_name="column", value_name="accuracy")
    groups = long.dropna(subset=["accuracy"]).groupby(CELL)["accuracy"]
    # pandas takes n - 1 for the deviation, and NaN where there is one seed.
    cells = groups.agg(mean="mean", std="std", n="count").assign(low=float("nan"), high=float("nan"))
    return cells.sort_index(key=lambda level: level.map(order[str(level.name)].index))


def costs(records: Sequence[Record]) -> dict[str, int]:
    """The most that one client of any run sends and receives in one round; nothing if images are pooled."""
    counts = [run.communication for run in records if run.communication and not run.is_centralised]
    return {name: max(count[name] for count in counts) for name in COSTS} if counts else {}


def with_intervals(table: Table) -> Table:
    """Add 95 % percentile intervals to last rounds and baselines.

    Images are drawn with the predictions of every seed, since all seeds measure the same images; domains are drawn
    independently. A cell has no interval if a run's predictions are missing, if seeds measured different images, or
    if it is no mean of accuracies.
    """
    protocol = table.protocol
    metrics = {column: [protocol.columns.get(column, f"{protocol.role}/{column}")] for column in table.columns}
    metrics[AVERAGE] = (
        [protocol.role] if protocol.columns else [f"{protocol.role}/{column}" for column in table.columns]
    )
    cells = table.cells.copy()
    for row in table.rows:
        if row[1] not in (LAST, UNTRAINED):
            continue
        # The last of several runs that measured the same images counts.
        by_seed: dict[int, dict[str, Predictions]] = {}
        for record in table.runs[row[0]]:
            of_seed = by_seed.setdefault(0 if row[1] == UNTRAINED else record.seed, {})
            of_seed.update(record.predictions.get(row_title(row), {}))
        for column, of_column in metrics.items():
            cell = table.cell(row, column)
            samples = None if cell is None else _samples(list(by_seed.values()), of_column, cell.n)
            if samples is not None:
                cells.loc[(*row, column), ["low", "high"]] = interval(samples)
    return replace(table, cells=cells)


def _samples(by_seed: Sequence[Mapping[str, Predictions]], metrics: Sequence[str], num_seeds: int) -> Samples | None:
    """Average each resample over the splits of some metrics; None if a seed of the cell lacks a split.

    A metric is the name of a split, or of a role, which is the mean over its splits.
    """
    complete = list(by_seed)
    for metric in metrics:
        complete = [of_seed for of_seed in complete if _splits(of_seed, metric)]
    if len(complete) != num_seeds:
        return None
    samples = []
    for metric in metrics:
        for split in _splits(complete[0], metric):
            predictions = [of_seed[split] for of_seed in complete if split in of_seed]
            # Without the same images in one order, by equally many states, seeds can't be drawn together.
            kinds = {(each.labels.tobytes(), each.predicted.shape) for each in predictions}
            if len(predictions) < num_seeds or len(kinds) > 1:
                return None
            # Stacked as states of one model, the predictions of all seeds are drawn together with their image.
            stacked = stack(predictions, ())
            num_classes = 1 + int(max(stacked.labels.max(), stacked.predicted.max()))
            samples.append(resample(stacked, num_classes, split)["accuracy"])
    mean: Samples = np.mean(samples, axis=0)
    return mean


def _splits(of_seed: Mapping[str, Predictions], metric: str) -> list[str]:
    return [name for name in of_seed if name == metric or name.startswith(f"{metric}/")]
