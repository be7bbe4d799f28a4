"""All rows, in the order of the page."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.faults import rows
from benchmarks.faults.fault import FAULTS, Fault
from benchmarks.faults.page import TABLES


def all_faults() -> list[Fault]:
    """Returns every row, table by table."""
    rows.load()
    order = list(TABLES)
    return sorted(FAULTS.values(), key=lambda row: (order.index(row.table), row.number))


def chosen(names: Sequence[str] | None) -> list[Fault]:
    """Returns the rows of these names, or all of them.

    Raises:
        KeyError: with a name that there is no row of.
    """
    known = all_faults()
    for name in names or ():
        if name not in FAULTS:
            raise KeyError(name)
    return [row for row in known if names is None or row.name in names]
