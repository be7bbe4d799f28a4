"""A table of runs with one row for each cell, for programs."""

from __future__ import annotations

from typing import Any

from fedvlp.results.compare import Table, TableRow
from fedvlp.results.rendering import GAP
from fedvlp.results.statistics import AVERAGE, Cell

TIDY_COLUMNS = (
    "table",
    "data",
    "images",
    "classes",
    "protocol",
    "split",
    "clients",
    "shots",
    "backbone",
    "source",
    "method",
    "round",
    "column",
    "mean",
    "std",
    "n",
    "note",
    "low",
    "high",
)


def tidy_rows(table: Table, number: int) -> list[dict[str, Any]]:
    """Returns one row for each cell, with keys of ``TIDY_COLUMNS``; deviations are sample deviations over seeds.

    Args:
        table: the table.
        number: its own, in the column ``table``.
    """
    about = {name: value for name, value in table.group.about.items() if name in TIDY_COLUMNS}
    tidy: list[dict[str, Any]] = []
    for row in table.rows:
        common = {
            "table": number,
            **about,
            "source": "ours",
            "method": row.label,
            "round": row.selection,
            "note": row.versions,
        }
        tidy += [common | values for values in _tidy_cells(table, row)]
    return tidy


def _tidy_cells(table: Table, row: TableRow) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, cell in row.cells.items():
        column = table.average_title if name == AVERAGE else name
        low, high = row.intervals.get(name, ("", ""))
        found.append(_cell(column, cell) | {"low": low, "high": high})
    if row.gap is not None:
        found.append(_cell(GAP, row.gap))
    num_runs = len(row.records)
    found += [{"column": name, "mean": most, "n": num_runs} for name, (_, most) in row.costs.items()]
    if row.seconds is not None:
        found.append({"column": "seconds", "mean": row.seconds, "n": num_runs})
    return found


def _cell(column: str, cell: Cell) -> dict[str, Any]:
    return {"column": column, "mean": cell.mean, "std": cell.deviation, "n": cell.count}
