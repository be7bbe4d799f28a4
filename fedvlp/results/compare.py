"""Tables of many runs: domains as columns, a row for each method and each way to choose the round."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedvlp.results.grouping import Group, group_records
from fedvlp.results.labels import row_labels
from fedvlp.results.record import Record
from fedvlp.results.statistics import AVERAGE, Cell, cells, without_repeats

Selection = Literal["last", "best", ""]
ZERO_SHOT = "ZeroShotCLIP"
COSTS = ("upload_parameters", "download_parameters", "upload_bytes", "download_bytes")
PACKAGES = ("fedvlp", "torch")


@dataclass(frozen=True)
class Line:
    """A row of a table.

    Attributes:
        label: the method, with what sets it apart from other rows of it.
        selection: the round: last, or best on source validation; empty for what trains nothing.
        cells: by domain, and average and spread over all domains; without what was not measured.
        records: the runs.
    """

    label: str
    selection: Selection
    cells: Mapping[str, Cell]
    records: tuple[Record, ...]

    @property
    def costs(self) -> dict[str, tuple[int, int]]:
        """Parameters and bytes of one client and round, the least and the most of the runs."""
        found = {name: [run.communication[name] for run in self.records if name in run.communication] for name in COSTS}
        return {name: (min(values), max(values)) for name, values in found.items() if values and self.selection}

    @property
    def seconds(self) -> float | None:
        """Mean time of a run; none for what trains nothing."""
        return statistics.fmean(run.seconds for run in self.records) if self.selection else None

    @property
    def versions(self) -> str:
        """Versions of fedvlp and PyTorch, of all runs."""
        found = {name: sorted({run.versions.get(name, "not said") for run in self.records}) for name in PACKAGES}
        return ", ".join(f"{name} {' and '.join(values)}" for name, values in found.items())


@dataclass(frozen=True)
class Table:
    """Results that may be compared.

    Attributes:
        group: the runs, and what they have in common.
        domains: the columns: all domains of which a run measured the accuracy, in the order of their names.
        known: number of domains of the data set; 0 if the runs do not say.
        lines: the rows.
    """

    group: Group
    domains: tuple[str, ...]
    known: int
    lines: tuple[Line, ...]

    @property
    def role(self) -> str:
        """On which images all accuracies are measured: ``held_out``, ``test`` or ``validation``."""
        return role_of(self.group.records[0])

    @property
    def is_whole(self) -> bool:
        """Whether every domain of the data set has a column."""
        return self.known in (0, len(self.domains))

    @property
    def average_title(self) -> str:
        """What the average is called, which says so if it is not over all domains."""
        return AVERAGE if self.is_whole else f"{AVERAGE} of {len(self.domains)} of {self.known}"

    @property
    def seeds(self) -> list[int]:
        """The seeds of all runs that trained."""
        return sorted({run.seed for line in self.lines if line.selection for run in line.records})


def tables(records: Sequence[Record], selections: Sequence[Selection] = ("last", "best")) -> list[Table]:
    """Returns a table for each group of runs that may be compared.

    Args:
        records: the runs.
        selections: which rounds have a row.
    """
    return [_table(group, selections) for group in group_records(records)]


def role_of(record: Record) -> str:
    """Returns on which images a run is compared: held-out domains, else test splits, else source validation."""
    if record.held_out:
        return "held_out"
    return "test" if any(name.startswith("test/") for row in record.accuracy.values() for name in row) else "validation"


def _table(group: Group, selections: Sequence[Selection]) -> Table:
    """Returns the table of a group."""
    measured = {name for record in group.records for row in record.accuracy.values() for name in _of_role(record, row)}
    domains = sorted(measured)
    trained = [record for record in group.records if record.method != ZERO_SHOT]
    rows: dict[Hashable, list[Record]] = {}
    for record in trained:
        rows.setdefault(record.settings, []).append(record)
    labels = row_labels(trained)
    lines = _zero_shot(group.records, domains)
    for settings, members in rows.items():
        lines += [_line(labels[settings], selection, members, domains) for selection in selections]
    return Table(group, tuple(domains), len(group.records[0].data.get("domains", [])), tuple(lines))


def _line(label: str, selection: Selection, members: Sequence[Record], domains: Sequence[str]) -> Line:
    """Returns the row of one method and one way to choose the round."""
    scores: dict[int, dict[str, float]] = {}
    for record in members:
        row = record.last if selection == "last" else record.best
        scores.setdefault(record.seed, {}).update(_of_role(record, row))
    return Line(label, selection, cells(scores, domains), tuple(members))


def _zero_shot(records: Sequence[Record], domains: Sequence[str]) -> list[Line]:
    """Returns a row for each number of templates of zero-shot CLIP; that of one is in every run's own table."""
    by_templates: dict[int, dict[int, dict[str, float]]] = {}
    runs: dict[int, list[Record]] = {}
    for record in records:
        templates = int(record.options.get("templates", 1)) if record.method == ZERO_SHOT else 1
        row = record.last if record.method == ZERO_SHOT else record.baseline
        if row:
            by_templates.setdefault(templates, {}).setdefault(record.seed, {}).update(_of_role(record, row))
            runs.setdefault(templates, []).append(record)
    return [
        Line(_zero_shot_label(count), "", cells(without_repeats(scores), domains), tuple(runs[count]))
        for count, scores in sorted(by_templates.items())
    ]


def _zero_shot_label(templates: int) -> str:
    """Returns what zero-shot CLIP's row is called."""
    return "zero-shot CLIP" if templates == 1 else f"zero-shot CLIP, {templates} templates"


def _of_role(record: Record, row: Mapping[str, float]) -> dict[str, float]:
    """Returns the accuracies that are compared, by domain."""
    start = f"{role_of(record)}/"
    return {name.removeprefix(start): value for name, value in row.items() if name.startswith(start)}


def repeated(table: Table) -> list[str]:
    """Returns a line for each row of which a seed measured a domain more than once; then the last run counts."""
    found = {}
    for line in table.lines:
        runs = [(run.seed, domain) for run in line.records for domain in run.held_out or [""]]
        if line.selection and len(set(runs)) < len(runs):
            found[line.label] = f"{line.label}: several runs of one seed measured the same domain; the last one counts"
    return list(found.values())
