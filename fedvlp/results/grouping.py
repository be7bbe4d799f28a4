"""Which runs belong in one table, and what differs between tables."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedvlp.results.record import Record


@dataclass(frozen=True)
class Group:
    """Runs that belong in one table.

    Attributes:
        about: what they have in common, by name.
        records: the runs.
    """

    about: dict[str, str]
    records: tuple[Record, ...]


def group_records(records: Sequence[Record]) -> list[Group]:
    """Returns the runs by table, in the order of each table's first run.

    Beside what makes a run's ``key``, a table has one number of held-out domains: more of them leave fewer to train on.
    """
    groups: dict[Hashable, list[Record]] = {}
    for record in records:
        groups.setdefault((record.key, len(record.held_out)), []).append(record)
    return [Group(_about(members[0]), tuple(members)) for members in groups.values()]


def by_settings(records: Iterable[Record]) -> dict[Hashable, list[Record]]:
    """Returns the runs of each row of a table, those of equal settings."""
    rows: dict[Hashable, list[Record]] = {}
    for record in records:
        rows.setdefault(record.settings, []).append(record)
    return rows


def describe_differences(groups: Sequence[Group]) -> str:
    """Returns a line that says in what several tables differ; empty for a single one."""
    if len(groups) < 2:
        return ""
    names: dict[str, None] = {}
    for group in groups:
        names |= dict.fromkeys(group.about)
    parts = []
    for name in names:
        values = list(dict.fromkeys(group.about.get(name, "not said") for group in groups))
        if len(values) > 1:
            parts.append(f"{name} ({' | '.join(values)})")
    return f"{len(groups)} tables, which must not be mixed; they differ in {'; '.join(parts) or 'weights or splits'}"


def _about(record: Record) -> dict[str, str]:
    """Returns what all runs of a table have in common, as a reader wants it."""
    backbone = f"CLIP {record.clip}, weights {record.clip_fingerprint[:8]}"
    if not record.data:
        return {
            "data": "not described by the run",
            "protocol": record.protocol,
            "split": record.split,
            "backbone": backbone,
        }
    data = record.data
    held_out = f", {len(record.held_out)} held out" if record.held_out else ""
    return {
        "data": str(data.get("name")),
        "images": str(data.get("images")),
        "classes": _classes(data.get("classes", [])),
        "protocol": f"{data.get('kind')}{held_out}",
        "split": _split(data),
        "clients": str(data.get("partition")),
        "shots": "all images" if data.get("shots") is None else f"{data['shots']}-shot",
        "backbone": backbone,
    }


def _split(data: Mapping[str, Any]) -> str:
    rule = f"{data.get('split_rule')}, seed {data.get('split_seed')}"
    return f"{rule}, validation {_percent(data, 'validation_fraction')}, test {_percent(data, 'test_fraction')}"


def _percent(data: Mapping[str, Any], name: str) -> str:
    return f"{100 * data.get(name, 0.0):g} %"


def _classes(names: Sequence[str]) -> str:
    """Returns how many classes there are, with a digest of what prompts call them."""
    digest = hashlib.sha256("\0".join(names).encode()).hexdigest()[:8]
    return f"{len(names)}, names {digest}"
