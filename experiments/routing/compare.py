"""Compares TRIP's random start of the clusters with a start at the keys, by what ``fedvlp diagnose`` measures.

``python -m experiments.routing.compare`` prints the table for StyledShapes, ``--folder icons_dg`` that for a folder of
domains. Each domain is held out in turn, so that all its images are looked at.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvlp.commands.cli import main as fedvlp
from fedvlp.data import DomainFolders, StyledShapes

VARIANTS = {
    "random start": ["--model.cluster_start=random"],
    "start at the keys": ["--model.cluster_start=keys"],
    "random start, no capacity": ["--model.train_capacity=null", "--model.eval_capacity=null"],
    "random weights": ["--model.routing=random"],
    "random expert for each token": ["--model.routing=random_tokens"],
}
COLUMNS = ("dropped", "seeds r", "seeds same", "chance same", "mirror r", "mirror same", "spread")
Measurement = Mapping[str, Any]
"""What ``fedvlp diagnose`` measures of a domain with one capacity, by the name of the column."""


def diagnose(data: list[str], domain: str, options: list[str], output: Path) -> list[Measurement]:
    """Returns the measurements of a domain that is held out, for training's and for evaluation's capacity."""
    arguments = ["diagnose", "--config=methods/trip", *data, f"--data.held_out={domain}", *options]
    arguments += ["--model.clip.name=fedvlp-tiny", "--trainer.accelerator=cpu", f"--output={output}"]
    if fedvlp(arguments) != 0:
        raise SystemExit(1)
    rows: list[Measurement] = json.loads((output / "routing.json").read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if row["domain"] == domain]


def cell(rows: list[Measurement], column: str) -> str:
    """Returns the mean of a column over domains."""
    values = [row[column] for row in rows if row[column] is not None]
    return f"{statistics.mean(values):.2f}" if values else "-"


def line(name: str, mode: str, rows: list[Measurement]) -> str:
    """Returns a row of the table: means over domains, as Markdown."""
    cells = " | ".join(cell(rows, column) for column in COLUMNS)
    return f"| {name} | {mode} | {cells} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="folder of domains; StyledShapes if not given")
    parser.add_argument("--output", type=Path, default=Path("runs/routing"), help="folder of the measurements")
    options = parser.parse_args()
    if options.folder is None:
        data = ["--config=data/styled_shapes"]
        domains = StyledShapes().domains
    else:
        data = ["--config=data/folders", f"--data.root={options.folder}"]
        domains = DomainFolders(root=options.folder).domains
    lines = [f"| routing | mode | {' | '.join(COLUMNS)} |", f"|---|---|{'---:|' * len(COLUMNS)}"]
    for name, overrides in VARIANTS.items():
        found = [diagnose(data, domain, overrides, options.output / name / domain) for domain in domains]
        for place, mode in enumerate(("train", "eval")):
            lines.append(line(name, mode, [rows[place] for rows in found]))
    print("\n".join(["", *lines]))


if __name__ == "__main__":
    main()
