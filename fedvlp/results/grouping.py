"""Which runs belong in one table, and what differs between tables."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
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


def told_apart(groups: Sequence[Group]) -> str:
    """Returns a line that says in what several tables differ; empty for a single one."""
    if len(groups) < 2:
        return ""
    parts = []
    for name in dict.fromkeys(name for group in groups for name in group.about):
        values = list(dict.fromkeys(group.about.get(name, "not said") for group in groups))
        parts += [f"{name} ({' | '.join(values)})"] if len(values) > 1 else []
    return f"{len(groups)} tables, which must not be mixed; they differ in {'; '.join(parts) or 'weights or splits'}"


def _about(record: Record) -> dict[str, str]:
    """Returns what all runs of a table have in common, as a reader wants it."""
    data = record.data
    backbone = {"backbone": f"CLIP {record.clip}, weights {record.clip_fingerprint[:8]}"}
    if not data:
        return {"data": "not described by the run", "protocol": record.protocol, "split": record.split} | backbone
    held_out = f", {len(record.held_out)} held out" if record.held_out else ""
    split = (
        f"{data.get('split_rule')}, seed {data.get('split_seed')}, validation {_percent(data, 'validation_fraction')}"
    )
    return {
        "data": str(data.get("name")),
        "images": str(data.get("images")),
        "classes": _classes(data.get("classes", [])),
        "protocol": f"{data.get('kind')}{held_out}",
        "split": f"{split}, test {_percent(data, 'test_fraction')}",
        "clients": str(data.get("partition")),
        "shots": "all images" if data.get("shots") is None else f"{data['shots']}-shot",
    } | backbone


def _percent(data: Mapping[str, Any], name: str) -> str:
    """Returns a share in percent."""
    return f"{100 * data.get(name, 0.0):g} %"


def _classes(names: Sequence[str]) -> str:
    """Returns how many classes there are, with a digest of what prompts call them."""
    return f"{len(names)}, names {hashlib.sha256(chr(0).join(names).encode()).hexdigest()[:8]}"
