"""A table in the order of its results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedvlp.results.compare import Table, TableRow
from fedvlp.results.statistics import AVERAGE


def ranked(table: Table) -> Table:
    """Returns the table with the highest average of the last round first, and rows without an average at the end.

    A method's last round and its best on source validation become one row where they are equal.
    """
    methods: dict[str, list[TableRow]] = {}
    for row in table.rows:
        methods.setdefault(row.label, []).append(row)
    rows: list[TableRow] = []
    for of_method in sorted(methods.values(), key=lambda each: -average(each[0], -math.inf)):
        rows += _without_equals(of_method)
    return replace(table, rows=tuple(rows))


def average(row: TableRow, otherwise: float) -> float:
    """Returns the mean over domains and seeds in percent, or another number for a row that has none."""
    return row.cells[AVERAGE].mean if AVERAGE in row.cells else otherwise


def contestants(table: Table) -> list[TableRow]:
    """Returns the rows that are ranked, the highest average first: those of last rounds that have every domain."""
    rows = [row for row in ranked(table).rows if row.selection not in ("best", "oracle") and AVERAGE in row.cells]
    return sorted(rows, key=lambda row: -average(row, 0.0))


def _without_equals(rows: Sequence[TableRow]) -> list[TableRow]:
    """Returns a method's last and best round, or one row for both, and then its oracle."""
    reported = [row for row in rows if row.selection != "oracle"]
    others = [row for row in rows if row.selection == "oracle"]
    if len(reported) == 2 and reported[0].cells == reported[1].cells:
        return [replace(reported[0], selection="both"), *others]
    return [*reported, *others]
