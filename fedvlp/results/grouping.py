"""Which runs belong in one table, and what differs between tables."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedvlp.results.record import Record


@dataclass(frozen=True)
class Group:
    """Runs that belong in one table.

    Attributes:
        records: the runs.
    """

    records: tuple[Record, ...]

    @property
    def example(self) -> Record:
        """A run of clients; a centralised one only if there is no other."""
        return next((record for record in self.records if not record.is_centralised), self.records[0])

    @cached_property
    def about(self) -> dict[str, str]:
        """What the runs have in common, by name; of the clients, what those have that are not centralised."""
        return _about(self.example)


def group_records(records: Sequence[Record]) -> list[Group]:
    """Returns the runs by table, in the order of each table's first run.

    Beside what makes a run's ``key``, a table has one number of held-out domains: more of them leave fewer to train on.
    Centralised runs, whose images are dealt out to nobody, stand in every table of the same images, and in one of their
    own where there is no other.
    """
    federated: dict[Hashable, list[Hashable]] = {}
    for record in records:
        tables = federated.setdefault(_images(record), [])
        if not record.is_centralised and record.key not in tables:
            tables.append(record.key)
    groups: dict[Hashable, list[Record]] = {}
    for record in records:
        tables = federated[_images(record)] if record.is_centralised else []
        for key in tables or [record.key]:
            groups.setdefault((key, len(record.held_out)), []).append(record)
    return [Group(tuple(members)) for members in groups.values()]


def _images(record: Record) -> Hashable:
    """Returns what centralised runs have in common with those beside which they stand."""
    return record.key_of_images, len(record.held_out)


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
        **_of_protocol(data),
        "protocol": f"{data.get('kind')}{held_out}",
        "split": _split(data),
        "clients": str(data.get("partition")),
        "shots": "all images" if data.get("shots") is None else f"{data['shots']}-shot",
        "backbone": backbone,
    }


def _of_protocol(data: Mapping[str, Any]) -> dict[str, str]:
    """Returns what some protocols measure besides: classes on which nobody trains, clients' own, other data sets."""
    found = {}
    if "new_classes" in data:
        found["new classes"] = _classes(data["new_classes"])
    if "class_split" in data:
        found["measured classes"] = f"also those of each {data['class_split']}"
    if "targets" in data:
        found["other data sets"] = ", ".join(f"{each.get('name')} {each.get('images')}" for each in data["targets"])
    return found


def _split(data: Mapping[str, Any]) -> str:
    rule = f"{data.get('split_rule')}, seed {data.get('split_seed')}"
    return f"{rule}, validation {_percent(data, 'validation_fraction')}, test {_percent(data, 'test_fraction')}"


def _percent(data: Mapping[str, Any], name: str) -> str:
    return f"{100 * data.get(name, 0.0):g} %"


def _classes(names: Sequence[str]) -> str:
    """Returns how many classes there are, with a digest of what prompts call them."""
    digest = hashlib.sha256("\0".join(names).encode()).hexdigest()[:8]
    return f"{len(names)}, names {digest}"
