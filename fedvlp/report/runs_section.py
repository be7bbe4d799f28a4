"""The runs behind a report: where they are, their configs, and the versions that made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import yaml

from fedvlp.report.html import Html, joined, scrolling, tag
from fedvlp.results.compare import role_of
from fedvlp.results.labels import row_labels
from fedvlp.results.record import Record

HEAD = ("folder", "held out", "seed", "rounds", "last (%)", "best (%)", "split", "seconds")


def runs_section(records: Sequence[Record]) -> Html:
    """Returns the runs by method and settings, each with its config, folded up."""
    labels = row_labels(records)
    rows: dict[Hashable, list[Record]] = {}
    for record in records:
        rows.setdefault(record.settings, []).append(record)
    return joined([_row(labels[settings], members) for settings, members in rows.items()])


def versions_section(records: Sequence[Record]) -> Html:
    """Returns the versions of all packages that numbers depend on; of several versions how many runs had which."""
    names = list(dict.fromkeys(name for record in records for name in record.versions))
    lines = []
    for name in names:
        counts = Counter(record.versions.get(name, "not said") for record in records)
        told = [value if len(counts) == 1 else f"{value} ({count} runs)" for value, count in counts.items()]
        lines.append(tag("tr", tag("th", name, scope="row"), tag("td", ", ".join(told))))
    head = tag("tr", tag("th", "package", scope="col"), tag("th", "version", scope="col"))
    caption = tag("caption", "Versions that the runs were made with")
    return scrolling(tag("table", caption, tag("thead", head), tag("tbody", *lines)), "Versions") if lines else Html()


def _row(label: str, records: Sequence[Record]) -> Html:
    """Returns the runs of one row, folded up."""
    head = tag("tr", *(tag("th", name, scope="col") for name in HEAD))
    lines = [
        tag("tr", tag("th", cells[0], scope="row"), *(tag("td", cell) for cell in cells[1:]))
        for cells in map(_cells, records)
    ]
    table = tag("table", tag("caption", f"Runs of {label}"), tag("thead", head), tag("tbody", *lines))
    runs = f"{len(records)} run{'s' if len(records) > 1 else ''}"
    return tag(
        "details",
        tag("summary", f"{label}: {runs}"),
        scrolling(table, f"Runs of {label}"),
        *(_config(record) for record in records),
    )


def _cells(record: Record) -> list[str]:
    """Returns one line of the table of runs."""
    role = role_of(record)
    last, best = (f"{row[role]:.1f}" if role in row else "-" for row in (record.last, record.best))
    held_out = ", ".join(record.held_out) or "-"
    seconds = f"{record.seconds:.0f}"
    return [str(record.folder), held_out, str(record.seed), str(record.rounds), last, best, record.split, seconds]


def _config(record: Record) -> Html:
    """Returns a run's config, folded up."""
    summary = tag("summary", f"Config of {record.folder}")
    if not record.config:
        return tag("details", summary, tag("p", "The run was made in Python and has no config."))
    text = yaml.safe_dump(record.config, sort_keys=False, allow_unicode=True)
    return tag("details", summary, tag("pre", tag("code", text), tabindex="0"))
