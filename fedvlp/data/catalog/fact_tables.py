"""Tables of what was published of the classes of data sets; they lie in the folder ``facts``."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SEVERAL = "|"
"""Stands between several entries of one cell."""
NO_DOMAINS = ("class", "also", "of")


@dataclass(frozen=True)
class FactTable:
    """What is published of the classes of a data set.

    Attributes:
        class_names: the classes, in the order of the table.
        counts: images of each class by domain, for the domains of which they are published.
        also: the class that another spelling stands for.
        classes_of: the classes that a domain has, for the domains that have only some.
    """

    class_names: tuple[str, ...]
    counts: Mapping[str, Mapping[str, int]]
    also: Mapping[str, str]
    classes_of: Mapping[str, tuple[str, ...]]

    @property
    def totals(self) -> dict[str, int | None]:
        """Images of each domain of which the images of each class are published."""
        return {domain: sum(of_class.values()) for domain, of_class in self.counts.items()}


def read_facts(name: str) -> FactTable:
    """Reads the table of a data set: its classes, their other spellings, and images of each class by domain."""
    path = Path(__file__).parent / "facts" / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    counts: dict[str, dict[str, int]] = {}
    for domain in [column for column in rows[0] if column not in NO_DOMAINS]:
        of_class = {row["class"]: int(row[domain]) for row in rows if row[domain]}
        if of_class:  # nothing is published of a domain whose column is empty
            counts[domain] = of_class
    also: dict[str, str] = {}
    classes_of: dict[str, tuple[str, ...]] = {}
    for row in rows:
        also |= dict.fromkeys(_several(row.get("also")), row["class"])
        for domain in _several(row.get("of")):
            classes_of[domain] = (*classes_of.get(domain, ()), row["class"])
    return FactTable(tuple(row["class"] for row in rows), counts, also, classes_of)


def _several(cell: str | None) -> list[str]:
    return cell.split(SEVERAL) if cell else []
