"""The runs behind a report: where they are, their configs, and the versions that made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import yaml

from fedvlp.results.grouping import by_settings
from fedvlp.results.labels import row_labels
from fedvlp.results.measure import measure_of
from fedvlp.results.record import Record
from fedvlp.tools.report.html import Html, joined, scrolling, tag

HEAD = ("folder", "held out", "seed", "rounds", "last (%)", "best (%)", "split", "seconds")


def runs_section(records: Sequence[Record]) -> Html:
    """Returns the runs by method and settings, each with its config, folded up."""
    labels = row_labels(records)
    return joined([_row(labels[settings], members) for settings, members in by_settings(records).items()])


def versions_section(records: Sequence[Record]) -> Html:
    """Returns the versions of all packages that numbers depend on; of several versions how many runs had which."""
    packages: dict[str, None] = {}
    for record in records:
        packages |= dict.fromkeys(record.versions)
    if not packages:
        return Html()
    rows = [_table_row([package, _versions(records, package)]) for package in packages]
    table = _table("Versions that the runs were made with", ("package", "version"), rows)
    return scrolling(table, "Versions")


def _versions(records: Sequence[Record], package: str) -> str:
    counts = Counter(record.versions.get(package, "not said") for record in records)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{version} ({count} runs)" for version, count in counts.items())


def _table(caption: str, head: Sequence[str], rows: Sequence[Html]) -> Html:
    titles = [tag("th", name, scope="col") for name in head]
    return tag("table", tag("caption", caption), tag("thead", tag("tr", *titles)), tag("tbody", *rows))


def _table_row(cells: Sequence[str]) -> Html:
    """Returns a row whose first cell is its name."""
    return tag("tr", tag("th", cells[0], scope="row"), *(tag("td", cell) for cell in cells[1:]))


def _row(label: str, records: Sequence[Record]) -> Html:
    """Returns the runs of one row of the comparison, folded up."""
    rows = [_table_row(_cells(record)) for record in records]
    table = _table(f"Runs of {label}", HEAD, rows)
    runs = f"{len(records)} run{'s' if len(records) > 1 else ''}"
    return tag(
        "details",
        tag("summary", f"{label}: {runs}"),
        scrolling(table, f"Runs of {label}"),
        *(_config(record) for record in records),
    )


def _cells(record: Record) -> list[str]:
    """Returns the cells below each title of ``HEAD``."""
    role = measure_of(record).role
    return [
        str(record.folder),
        ", ".join(record.held_out) or "-",
        str(record.seed),
        str(record.rounds),
        _accuracy(record.last, role),
        _accuracy(record.best, role),
        record.split,
        f"{record.seconds:.0f}",
    ]


def _accuracy(row: Mapping[str, float], role: str) -> str:
    return f"{row[role]:.1f}" if role in row else "-"


def _config(record: Record) -> Html:
    """Returns a run's config, folded up."""
    summary = tag("summary", f"Config of {record.folder}")
    if not record.config:
        return tag("details", summary, tag("p", "The run was made in Python and has no config."))
    text = yaml.safe_dump(record.config, sort_keys=False, allow_unicode=True)
    return tag("details", summary, tag("pre", tag("code", text), tabindex="0"))
