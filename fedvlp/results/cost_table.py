"""Tables of what methods send, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pandas as pd

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
TEXT_COLUMNS = 3
CAPTION = (
    "up, down: parameters and bytes that one client sends and receives in one round, the largest where they differ\n"
    "once: what the server sends to each client before the first round only\n"
    "total: of the clients of each round and of all rounds, both ways, with what is sent once"
)


def format_costs(rows: Sequence[Mapping[str, Any]], form: CostFormat) -> str:
    """Returns the rows of one or more methods, which have the keys of ``TITLES``; JSON has their other keys as well.

    Methods of one phase have one row; the others have one a phase and one for all of them.

    >>> row = {name: 0 for name in TITLES} | {"method": "A", "config": "", "phase": "all", "upload_bytes": 4000}
    >>> print(format_costs([row], "csv").splitlines()[1])
    A,,all,0,4000,0,0,0,0,0,0,0,0
    """
    if form == "json":
        return json.dumps(list(rows), indent=2, ensure_ascii=False)
    frame = pd.DataFrame(list(rows), columns=list(TITLES))
    if form == "csv":
        return str(frame.to_csv(index=False)).rstrip("\n")
    head = list(TITLES.values())
    cells = frame.map(lambda value: value if isinstance(value, str) else f"{value:,}").to_numpy().tolist()
    if form == "markdown":
        alignment = ["---"] * TEXT_COLUMNS + ["---:"] * (len(head) - TEXT_COLUMNS)
        return markdown_table(head, alignment, [list(map(markdown_cell, row)) for row in cells])
    shared = {row["method"]: row.get("shares_of_images", ()) for row in rows}
    notes = [
        f"of images: {method} sends {', '.join(names)}, computed from images, to all clients"
        for method, names in shared.items()
        if names
    ]
    return "\n".join([text_table([head, *cells]), "", CAPTION, *notes])
