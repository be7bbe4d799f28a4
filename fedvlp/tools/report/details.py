"""What only those ask for who check a report: data, hashes, runs, configs and versions, folded up."""

from __future__ import annotations

from collections.abc import Sequence

from fedvlp.results.compare import Table
from fedvlp.results.record import Record
from fedvlp.results.rendering import title
from fedvlp.tools.report.html import Html, definitions, folded, joined, tag
from fedvlp.tools.report.runs_section import runs_section, versions_section


def details(records: Sequence[Record], compared: Sequence[Table]) -> Html:
    """Returns the data of each table, all runs with their configs, and the versions that made them."""
    parts = [tag("h3", "Data and splits"), *(folded(title(table.group.about), _about(table)) for table in compared)]
    parts += [tag("h3", "Runs and configs"), runs_section(records)]
    versions = versions_section(records)
    if versions:
        parts += [tag("h3", "Environment"), folded("Versions", versions)]
    return joined(parts)


def _about(table: Table) -> Html:
    """Returns data, protocol, splits and backbone of a table's runs."""
    records = table.group.records
    data = records[0].data
    saved_seconds = sum(record.features.get("saved_seconds", 0.0) for record in records)
    entries = [
        *table.group.about.items(),
        ("domains", ", ".join(data.get("domains", table.domains))),
        ("split hashes", ", ".join(dict.fromkeys(_split(record) for record in records))),
        ("seeds", ", ".join(map(str, table.seeds)) or "none"),
        ("runs", f"{len(records)}, {sum(record.seconds for record in records):,.0f} s of rounds"),
    ]
    if saved_seconds:
        entries.append(("feature cache", f"saved {saved_seconds:,.0f} s"))
    names = data.get("classes", [])
    if names:
        entries.append(("class names", ", ".join(names)))
    return definitions(entries)


def _split(record: Record) -> str:
    """Returns the hash of a run's split, with what it holds out."""
    held_out = " and ".join(record.held_out)
    return f"{record.split} ({held_out} held out)" if held_out else record.split
