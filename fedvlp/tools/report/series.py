"""What figures show of one method: its runs, and their means and deviations over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedvlp.results.compare import Table
from fedvlp.results.measure import measure_of_role
from fedvlp.results.record import Record
from fedvlp.results.statistics import Cell, over_seeds

HeldOut = tuple[str, ...]


@dataclass(frozen=True)
class MethodSeries:
    """Runs of a method that differ in seed and held-out domains alone.

    Attributes:
        label: what the series is called.
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

    @property
    def parameters(self) -> int:
        """How many parameters a client sends and receives in one round."""
        sent = self.example.communication
        return sent.get("upload_parameters", 0) + sent.get("download_parameters", 0)

    def means(self, name: str) -> list[float]:
        """Returns for each seed the mean over its runs of an accuracy after the last round, in percent.

        If a seed has no run with this accuracy, there are no means.
        """
        return self._means(name, lambda record: record.last)

    def baseline_means(self, name: str) -> list[float]:
        """Returns the same of zero-shot CLIP."""
        return self._means(name, lambda record: record.baseline)

    def _means(self, name: str, row_of: Callable[[Record], Mapping[str, float]]) -> list[float]:
        means = []
        for records in self.seeds:
            values = [row_of(record)[name] for record in records if name in row_of(record)]
            if not values:
                return []
            means.append(statistics.fmean(values))
        return means

    def curve(self, name: str) -> dict[int, Cell]:
        """Returns mean and deviation over seeds by round, of the rounds that all runs have evaluated."""
        histories = [_histories(records, name) for records in self.seeds]
        curve = {}
        for number in _shared_rounds(histories):
            means = [_mean_of_round(of_seed, number) for of_seed in histories]
            curve[number] = over_seeds(means)
        return curve


def _histories(records: Iterable[Record], name: str) -> list[dict[int, float]]:
    return [_by_round(record, name) for record in records]


def _by_round(record: Record, name: str) -> dict[int, float]:
    return {int(row["round"]): row[name] for row in record.history if name in row}


def _shared_rounds(histories: Sequence[Sequence[Mapping[int, float]]]) -> list[int]:
    rounds: list[set[int]] = []
    for of_seed in histories:
        rounds += [set(of_run) for of_run in of_seed]
    return sorted(set.intersection(*rounds))


def _mean_of_round(of_seed: Sequence[Mapping[int, float]], number: int) -> float:
    return statistics.fmean(of_run[number] for of_run in of_seed)


def complete_series(table: Table) -> tuple[list[MethodSeries], list[str]]:
    """Returns a table's methods with the seeds that have every choice of held-out domains, and what is left out.

    A mean over some of the domains would not compare with a mean over all of them.

    Returns:
        The series, and the labels of those of which no seed is complete.
    """
    choices = list(dict.fromkeys(record.held_out for record in table.group.records))
    series: list[MethodSeries] = []
    left_out: list[str] = []
    for row in table.rows:
        # Other rounds are of the same runs as last ones; of zero-shot CLIP, only runs that train nothing count.
        if row.selection in ("best", "oracle"):
            continue
        records = [record for record in row.records if row.is_trained or not record.rounds]
        seeds = complete_seeds(records, choices)
        if seeds:
            series.append(MethodSeries(row.label, len(series), seeds))
        elif row.is_trained:
            left_out.append(row.label)
    return series, left_out


def complete_seeds(records: Iterable[Record], choices: Sequence[HeldOut]) -> tuple[tuple[Record, ...], ...]:
    """Returns the runs of each seed that has every choice of held-out domains; of equal runs the last counts.

    Seeds do not matter for a method that trains nothing, so its runs count as one seed.
    """
    by_seed: dict[int, dict[HeldOut, Record]] = {}
    for record in records:
        seed = record.seed if record.rounds else 0
        by_seed.setdefault(seed, {})[record.held_out] = record
    complete = []
    for _, runs in sorted(by_seed.items()):
        if set(choices) <= set(runs):
            complete.append(tuple(runs[choice] for choice in choices))
    return tuple(complete)


def domains_of(series: Iterable[MethodSeries], role: str) -> list[str]:
    """Returns the names of the domains of a role, sorted."""
    names: set[str] = set()
    for method in series:
        for runs in method.seeds:
            names.update(*(record.last for record in runs))
    return sorted(name.split("/", 1)[1] for name in names if name.startswith(f"{role}/"))


def domain_columns(series: Iterable[MethodSeries], role: str) -> dict[str, str]:
    """Returns the name of each domain's accuracy, and, of several domains, that of their mean, by what it is called.

    Of a protocol that is compared by something else these are the columns of its table.
    """
    series = list(series)
    measure = measure_of_role(role)
    if measure is not None:
        columns = {**measure.columns, measure.title: measure.role}
        return {title: name for title, name in columns.items() if _is_measured(series, name)}
    domains = domains_of(series, role)
    columns = {domain: f"{role}/{domain}" for domain in domains}
    return columns if len(domains) == 1 else columns | {"mean": role}


def _is_measured(series: Iterable[MethodSeries], name: str) -> bool:
    return any(one.means(name) for one in series)


def baseline(series: Iterable[MethodSeries], name: str) -> float | None:
    """Returns zero-shot CLIP's accuracy, if the series agree on it and none of them is zero-shot CLIP itself."""
    levels: list[float] = []
    for method in series:
        if not method.is_trained:
            return None
        levels += method.baseline_means(name)
    if levels and max(levels) - min(levels) < 1e-3:
        return levels[0]
    return None


def count_seeds(series: Iterable[MethodSeries]) -> str:
    """Returns how many seeds the methods that train have, in words."""
    counts = {len(method.seeds) for method in series if method.is_trained} or {1}
    return "one seed" if counts == {1} else f"{format_extent(counts)} seeds"


def format_extent(numbers: Iterable[int]) -> str:
    """Returns the smallest and the largest of some numbers.

    >>> format_extent([3, 5, 4]), format_extent([3, 3])
    ('3 to 5', '3')
    """
    found = set(numbers)
    least = min(found)
    most = max(found)
    return str(least) if least == most else f"{least} to {most}"
