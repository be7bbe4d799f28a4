"""Tables of what methods send, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fedvlp.utils.csv_cells import csv_text
from fedvlp.utils.text_table import markdown_cell, markdown_table, text_table

CostFormat = Literal["table", "markdown", "csv", "json"]
TITLES = {
    "method": "method",
    "config": "config",
    "phase": "phase",
    "upload_parameters": "up",
    "upload_bytes": "up bytes",
    "download_parameters": "down",
    "download_bytes": "down bytes",
    "once_parameters": "once",
    "once_bytes": "once bytes",
    "clients": "clients",
    "rounds": "rounds",
    "total_parameters": "total",
    "total_bytes": "total bytes",
}
NUM_TEXT_COLUMNS = 3
CAPTION = (
    "up, down: parameters and bytes that one client sends and receives in one round, the largest where they differ\n"
    "once: what the server sends to each client before the first round only\n"
    "total: of the clients of each round and of all rounds, both ways, with what is sent once"
)


def format_costs(rows: Sequence[Mapping[str, Any]], form: CostFormat) -> str:
    """Returns the rows of one or more methods, which have the keys of ``TITLES`` and others that are only for JSON.

    Methods of one phase have one row; the others have one a phase and one for all of them.

    >>> row = {name: 0 for name in TITLES} | {"method": "A", "config": "", "phase": "all", "upload_bytes": 4000}
    >>> print(format_costs([row], "csv").splitlines()[1])
    A,,all,0,4000,0,0,0,0,0,0,0,0
    """
    if form == "json":
        return json.dumps(list(rows), indent=2, ensure_ascii=False)
    if form == "csv":
        return csv_text(TITLES, rows)
    head = list(TITLES.values())
    cells = [_cells(row) for row in rows]
    if form == "markdown":
        alignment = ["---"] * NUM_TEXT_COLUMNS + ["---:"] * (len(head) - NUM_TEXT_COLUMNS)
        return markdown_table(head, alignment, [list(map(markdown_cell, row)) for row in cells])
    return f"{text_table([head, *cells])}\n\n{CAPTION}{_of_images(rows)}"


def _of_images(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a line for each method whose clients send what is computed from their images and not learned."""
    shared = {row["method"]: row.get("shares_of_images", ()) for row in rows}
    return "".join(
        f"\nof images: {method} sends {', '.join(names)}, computed from images, to all clients"
        for method, names in shared.items()
        if names
    )


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [_cell(row[name]) for name in TITLES]


def _cell(value: Any) -> str:
    """Returns a number with separators of thousands, or a word."""
    return f"{value:,}" if isinstance(value, int) else str(value)
