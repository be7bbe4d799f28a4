"""The command ``fedvlp cost``: a table of communication costs. PyTorch is imported only after parsing options."""

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
    "up, down: parameters and bytes that a client sends and receives per round (the maximum if clients differ)",
    "once: sent by the server to each client, only before the first round",
    "total: sent and received by all clients in all rounds, including once",
)


def run_cost(arguments: Sequence[str]) -> int:
    """Print the costs of each config's method and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fedvlp cost",
        usage="fedvlp cost [--config NAME ...] [options]",
        description="Count the parameters that methods send, without training. Each --config of a method adds "
        "rows to the table. Accepts all options of `fedvlp fit`; without a data set, pass the numbers of classes and "
        "domains as --data.classes and --data.domains.",
        allow_abbrev=False,
    )
    parser.add_argument("--format", choices=FORMATS, default="table", help="format of the table")
    options, method_arguments = parser.parse_known_args(arguments)
    from fedvlp.tools.cost.counting import costs

    sys.stdout.write(format_costs(costs(method_arguments), options.format) + "\n")
    return 0


def format_costs(rows: Sequence[Mapping[str, Any]], form: str) -> str:
    """Format rows, with the keys of ``COST_TITLES``, in one of ``FORMATS``; JSON has all keys.

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
            lines.append(f"image statistics: {method} sends {', '.join(names)}, computed from images, to all clients")
    return "\n".join(lines)
