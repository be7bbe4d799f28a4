"""Tables of many runs: domains as columns, a row for each method and each way to choose the round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fedvlp.results.grouping import Group, by_settings, group_records
from fedvlp.results.labels import row_labels
from fedvlp.results.measure import Measure, measure_of
from fedvlp.results.oracle import differences, oracle
from fedvlp.results.record import COSTS, Record
from fedvlp.results.statistics import AVERAGE, Cell, Interval, Scores, cells, column_cells, without_repeats

Selection = Literal["last", "best", "both", "oracle", ""]
ZERO_SHOT = "ZeroShotCLIP"
PACKAGES = ("fedvlp", "torch")


@dataclass(frozen=True)
class TableRow:
    """A row of a table.

    Attributes:
        label: the method, with what sets it apart from other rows of it.
        selection: the round: last, best on source validation, or both where they are equal; oracle for the one that
            is best on the images compared; empty for what trains nothing.
        cells: by column, and what rows are ranked by: the average over all columns, with their spread, or what the
            table's measure says; without what was not measured.
        records: the runs.
        gap: of the oracle, its average less that of the last round, in points.
        intervals: of cells, by the same names, where they were asked for and images are known.
    """

    label: str
    selection: Selection
    cells: Mapping[str, Cell]
    records: tuple[Record, ...]
    gap: Cell | None = None
    intervals: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def is_trained(self) -> bool:
        """Whether the row is of something that trains."""
        return self.selection != ""

    @property
    def costs(self) -> dict[str, tuple[int, int]]:
        """Parameters and bytes of one client and round, the least and the most of the runs; none without clients."""
        ranges: dict[str, tuple[int, int]] = {}
        if not self.is_trained or self.records[0].is_centralised:
            return ranges
        for name in COSTS:
            values = [run.communication[name] for run in self.records if run.communication]
            if values:
                ranges[name] = (min(values), max(values))
        return ranges

    @property
    def seconds(self) -> float | None:
        """Mean time of a run; None for what trains nothing."""
        if not self.is_trained:
            return None
        return statistics.fmean(run.seconds for run in self.records)

    @property
    def versions(self) -> str:
        """Versions of fedvlp and PyTorch, of all runs."""
        parts = []
        for package in PACKAGES:
            found = {run.versions.get(package, "not said") for run in self.records}
            parts.append(f"{package} {' and '.join(sorted(found))}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Table:
    """Results that may be compared.

    Attributes:
        group: the runs, and what they have in common.
        domains: the columns: all domains of which a run measured the accuracy, in the order of their names, or what the
            protocol measures in their place.
        num_domains: number of columns if everything was measured; 0 if the runs do not say.
        rows: one for each method, settings and selection.
    """

    group: Group
    domains: tuple[str, ...]
    num_domains: int
    rows: tuple[TableRow, ...]

    @property
    def measure(self) -> Measure:
        """What the cells are."""
        return measure_of(self.group.records[0])

    @property
    def role(self) -> str:
        """The metric that rows are ranked by, such as ``held_out``, ``test`` or ``validation``."""
        return self.measure.role

    @property
    def is_whole(self) -> bool:
        """Whether every domain of the data set has a column."""
        return self.num_domains in (0, len(self.domains))

    @property
    def average_title(self) -> str:
        """What rows are ranked by: the average, which says so if it is not over all domains, or the measure's own."""
        if self.measure.title:
            return self.measure.title
        return AVERAGE if self.is_whole else f"{AVERAGE} of {len(self.domains)} of {self.num_domains}"

    @property
    def seeds(self) -> list[int]:
        """The seeds of all runs that trained."""
        found: set[int] = set()
        for row in self.rows:
            if row.is_trained:
                found.update(run.seed for run in row.records)
        return sorted(found)


def tables(records: Sequence[Record], selections: Sequence[Selection] = ("last", "best")) -> list[Table]:
    """Returns a table for each group of runs that may be compared.

    Args:
        records: the runs.
        selections: which rounds have a row. The oracle has one for methods of which every run knows its rounds.
    """
    return [_table(group, selections) for group in group_records(records)]


def repeat_warnings(table: Table) -> list[str]:
    """Returns a line for each row of which a seed measured a domain more than once; then the last run counts."""
    warnings: dict[str, str] = {}
    for row in table.rows:
        if row.is_trained and _has_repeats(row.records):
            warnings[row.label] = f"{row.label}: several runs of one seed measured the same domain; the last one counts"
    return list(warnings.values())


def _table(group: Group, selections: Sequence[Selection]) -> Table:
    measure = measure_of(group.records[0])
    domains = _measured_domains(group.records, measure)
    trained = [record for record in group.records if record.method != ZERO_SHOT]
    labels = row_labels(trained)
    rows = _zero_shot_rows(group.records, measure, domains)
    for settings, members in by_settings(trained).items():
        is_there = {"best": any(record.best for record in members), "oracle": all(map(_oracle, members))}
        chosen = [each for each in selections if is_there.get(each, True)]
        rows += [_row(labels[settings], selection, members, measure, domains) for selection in chosen]
    data = group.records[0].data
    every = () if measure.columns else data.get("targets", data.get("domains", ()))
    return Table(group, tuple(domains), len(every), tuple(rows))


def _measured_domains(records: Sequence[Record], measure: Measure) -> list[str]:
    domains: set[str] = set()
    for record in records:
        for accuracies in record.accuracy.values():
            domains.update(measure.compared(accuracies))
    return [title for title in measure.columns if title in domains] if measure.columns else sorted(domains)


def _row(
    label: str, selection: Selection, members: Sequence[Record], measure: Measure, domains: Sequence[str]
) -> TableRow:
    scores = _scores(members, measure, ROUNDS[selection])
    row = TableRow(label, selection, _cells(scores, measure, domains), tuple(members))
    if selection != "oracle":
        return row
    gaps = differences(scores, _scores(members, measure, ROUNDS["last"]))
    return replace(row, gap=_cells(gaps, measure, domains).get(AVERAGE))


def _scores(
    members: Sequence[Record], measure: Measure, accuracies_of: Callable[[Record], Mapping[str, float]]
) -> Scores:
    """Returns the accuracies that are compared, by seed and column."""
    scores: dict[int, dict[str, float]] = {}
    for record in members:
        # A seed's runs, each with its own held-out domains, fill one row between them.
        scores.setdefault(record.seed, {}).update(measure.compared(accuracies_of(record)))
    return scores


def _oracle(record: Record) -> Mapping[str, float]:
    return oracle(record, measure_of(record).role)


ROUNDS: Mapping[str, Callable[[Record], Mapping[str, float]]] = {
    "last": lambda record: record.last,
    "best": lambda record: record.best,
    "oracle": _oracle,
}
"""The accuracies of a run by the round that a row is of."""


def _cells(scores: Scores, measure: Measure, domains: Sequence[str]) -> dict[str, Cell]:
    """Returns the cells of a row, with what it is ranked by under ``AVERAGE``."""
    if not measure.columns:
        return cells(scores, domains)
    found = column_cells(scores, [*domains, measure.title])
    if measure.title in found:
        found[AVERAGE] = found.pop(measure.title)
    return found


def _zero_shot_rows(records: Sequence[Record], measure: Measure, domains: Sequence[str]) -> list[TableRow]:
    """Returns a row for each number of templates of zero-shot CLIP; every run has measured that of one itself."""
    scores: dict[int, dict[int, dict[str, float]]] = {}
    runs: dict[int, list[Record]] = {}
    for record in records:
        templates, accuracies = _zero_shot(record)
        if accuracies:
            # Of several runs that measured the same, the last one counts.
            of_seed = scores.setdefault(templates, {}).setdefault(record.seed, {})
            of_seed.update(measure.compared(accuracies))
            runs.setdefault(templates, []).append(record)
    rows = []
    for templates, by_seed in sorted(scores.items()):
        label = "zero-shot CLIP" if templates == 1 else f"zero-shot CLIP, {templates} templates"
        of_row = _cells(without_repeats(by_seed), measure, domains)
        rows.append(TableRow(label, "", of_row, tuple(runs[templates])))
    return rows


def _zero_shot(record: Record) -> tuple[int, Mapping[str, float]]:
    """Returns the number of templates of the zero-shot CLIP that a run measured, and its accuracies."""
    if record.method == ZERO_SHOT:
        return int(record.options.get("templates", 1)), record.last
    return 1, record.baseline


def _has_repeats(records: Sequence[Record]) -> bool:
    """Whether two runs of one seed hold out the same domain."""
    seen: set[tuple[int, str]] = set()
    for record in records:
        for domain in record.held_out or [""]:
            if (record.seed, domain) in seen:
                return True
            seen.add((record.seed, domain))
    return False
