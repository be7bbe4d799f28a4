"""The command ``fedvlp cost``: a table of what methods send. What needs PyTorch is imported after its options."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedvlp.utils.text_table import frame_markdown, frame_table

FORMATS = ("table", "markdown", "json")
COST_TITLES = {
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
COST_CAPTION = (
    "up, down: parameters and bytes that one client sends and receives in one round, the largest where they differ",
    "once: what the server sends to each client before the first round only",
    "total: of the clients of each round and of all rounds, both ways, with what is sent once",
)


def run_cost(arguments: Sequence[str]) -> int:
    """Print the table of each config's method, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fedvlp cost",
        usage="fedvlp cost [--config NAME ...] [options]",
        description="Print what methods send, without training. Each --config that names a method makes rows of the "
        "table. All options of `fedvlp fit` are taken; without a data set, --data.classes and --data.domains say how "
        "many there are.",
        allow_abbrev=False,
    )
    parser.add_argument("--format", choices=FORMATS, default="table", help="how to print the table")
    options, of_methods = parser.parse_known_args(arguments)
    from fedvlp.tools.cost.counting import costs

    sys.stdout.write(format_costs(costs(of_methods), options.format) + "\n")
    return 0


def format_costs(rows: Sequence[Mapping[str, Any]], form: str) -> str:
    """Format rows with the keys of ``COST_TITLES`` in one of ``FORMATS``; JSON has all keys.

    >>> row = {name: 0 for name in COST_TITLES} | {"method": "A", "config": "", "phase": "all", "upload_bytes": 4000}
    >>> print(format_costs([row], "markdown").splitlines()[2])
    | A |  | all | 0 | 4,000 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |
    """
    if form == "json":
        return json.dumps(list(rows), indent=2, ensure_ascii=False)
    frame = pd.DataFrame(list(rows), columns=list(COST_TITLES))
    cells = frame.map(lambda value: value if isinstance(value, str) else f"{value:,}").rename(columns=COST_TITLES)
    if form == "markdown":
        return frame_markdown(cells, text_columns=3)
    lines = [frame_table(cells, text_columns=3), "", *COST_CAPTION]
    for method, names in {row["method"]: row.get("image_statistics") for row in rows}.items():
        if names:
            lines.append(f"of images: {method} sends {', '.join(names)}, computed from images, to all clients")
    return "\n".join(lines)
