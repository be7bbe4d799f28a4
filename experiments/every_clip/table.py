"""Write the table of the README: each architecture that open_clip lists, and which methods train with it.

Usage, in the repository's folder, after ``experiments.every_clip.run``: ``python -m experiments.every_clip.table``
"""

from __future__ import annotations

import csv
from pathlib import Path

from experiments.every_clip.run import METHODS, RESULTS
from fedvlp.utils.text_table import markdown_table

PAGE = Path(__file__).resolve().parent / "README.md"
MARK = "<!-- below: written by python -m experiments.every_clip.table from results.csv -->\n"


def page() -> str:
    """Render the page with a new table below the mark."""
    prose = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    with RESULTS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    titles = ["architecture", "text tower", "image tower", "context", "pixels", "parameters", "trains", "weights"]
    cells: list[list[str]] = []
    for row in rows:
        size = f"{int(row['parameters']) / 1e6:,.0f} M"
        towers = [row["text tower"], row["image tower"], row["context"], row["image size"]]
        cells.append([f"`{row['architecture']}`", *towers, size, trained(row), row["weights"]])
    table = markdown_table(titles, ["---", "---", "---", "---:", "---:", "---:", "---", "---"], cells)
    return f"{prose}{MARK}\n{table}\n"


def trained(row: dict[str, str]) -> str:
    """List the groups of methods that train with an architecture."""
    groups = [group for group in METHODS if row[group] == "yes"]
    return "all" if len(groups) == len(METHODS) else ", ".join(groups)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
