"""The runs of one row of a table, and their means and deviations over seeds, as figures show them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedvlp.core.roles import ROLES
from fedvlp.results.compare import Table
from fedvlp.results.record import Record
from fedvlp.results.statistics import Cell, over_seeds

HeldOut = tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """Runs that differ in seed and held-out domains alone.

    Attributes:
        label: what the row is called.
        index: its place in the table, from which its colour comes.
        seeds: for each seed its runs, one for each choice of held-out domains.
    """

    label: str
    index: int
    seeds: tuple[tuple[Record, ...], ...]

    @property
    def example(self) -> Record:
        """One of the runs."""
        return self.seeds[0][0]

    @property
    def is_trained(self) -> bool:
        """Whether the method trains at all."""
        return self.example.rounds > 0

    def means(self, name: str, of: Callable[[Record], Mapping[str, float]] = lambda record: record.last) -> list[float]:
        """Returns for each seed the mean over its runs of what ``of`` has under a name; empty if a seed lacks it."""
        values = [[of(record)[name] for record in records if name in of(record)] for records in self.seeds]
        return [statistics.fmean(found) for found in values] if all(values) else []

    def curve(self, name: str) -> dict[int, Cell]:
        """Returns mean and deviation over seeds by round, of the rounds that all runs have evaluated."""
        histories = [[_by_round(record, name) for record in records] for records in self.seeds]
        rounds = set.intersection(*(set(history) for runs in histories for history in runs))
        return {
            number: over_seeds([statistics.fmean(history[number] for history in runs) for runs in histories])
            for number in sorted(rounds)
        }


def _by_round(record: Record, name: str) -> dict[int, float]:
    """Returns one of a run's accuracies by round."""
    return {int(row["round"]): row[name] for row in record.history if name in row}


def complete_rows(table: Table) -> tuple[list[Row], list[str]]:
    """Returns a table's rows with the seeds that have every choice of held-out domains, and what is left out.

    A mean over some of the domains would not compare with a mean over all of them.

    Returns:
        The rows, and the names of those of which no seed is complete.
    """
    choices = list(dict.fromkeys(record.held_out for record in table.group.records))
    rows: list[Row] = []
    left_out: list[str] = []
    for line in table.lines:
        own = [record for record in line.records if line.selection == "last" or not record.rounds]
        seeds = complete_seeds(own, choices) if line.selection != "best" else ()
        if seeds:
            rows.append(Row(line.label, len(rows), seeds))
        elif line.selection == "last":
            left_out.append(line.label)
    return rows, left_out


def complete_seeds(records: Iterable[Record], choices: Sequence[HeldOut]) -> tuple[tuple[Record, ...], ...]:
    """Returns the runs of each seed that has every choice of held-out domains; of equal runs the last counts.

    Seeds do not matter for a method that trains nothing, so its runs count as one seed.
    """
    found: dict[int, dict[HeldOut, Record]] = {}
    for record in records:
        found.setdefault(record.seed if record.rounds else 0, {})[record.held_out] = record
    return tuple(
        tuple(of_seed[choice] for choice in choices)
        for _, of_seed in sorted(found.items())
        if set(choices) <= set(of_seed)
    )


def role_title(role: str) -> str:
    """Returns what a reader calls a role.

    >>> role_title("held_out"), role_title("validation")
    ('held-out', 'source validation')
    """
    return "source validation" if role == "validation" else ROLES[role]


def domains_of(rows: Iterable[Row], role: str) -> list[str]:
    """Returns the names of the domains of a role, sorted."""
    found = {name for row in rows for runs in row.seeds for record in runs for name in record.last}
    return sorted(name.split("/", 1)[1] for name in found if name.startswith(f"{role}/"))


def columns_of(rows: Iterable[Row], role: str) -> dict[str, str]:
    """Returns the name of each domain's accuracy, and, of several domains, that of their mean, by what it is called."""
    domains = domains_of(rows, role)
    return {domain: f"{role}/{domain}" for domain in domains} | ({"mean": role} if len(domains) != 1 else {})


def baseline(rows: Iterable[Row], name: str) -> float | None:
    """Returns zero-shot CLIP's accuracy, if the rows agree on it and none of them is zero-shot CLIP itself."""
    rows = list(rows)
    if not all(row.is_trained for row in rows):
        return None
    found = [value for row in rows for value in row.means(name, lambda record: record.baseline)]
    return found[0] if found and max(found) - min(found) < 1e-3 else None


def shown(cell: Cell) -> str:
    """Returns a mean in percent with its deviation.

    >>> shown(Cell(60.0, 2.0, 3)), shown(Cell(60.0, None, 1))
    ('60.0 ± 2.0', '60.0')
    """
    return f"{cell.mean:.1f}" + ("" if cell.deviation is None else f" ± {cell.deviation:.1f}")


def seed_counts(rows: Iterable[Row]) -> str:
    """Returns how many seeds the rows of methods that train have, in words."""
    counts = {len(row.seeds) for row in rows if row.is_trained} or {1}
    return "one seed" if counts == {1} else f"{' to '.join(map(str, sorted({min(counts), max(counts)})))} seeds"
