"""Update the tables and pictures of the README's first command and of the tutorial's sweep in the documentation.

Usage, in the repository's folder::

    python docs/_scripts/refresh.py runs/PromptFL-IconDomains-pixel/<time> runs/first
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from fedvlp.results import find_records
from fedvlp.results.rounds import format_accuracies
from fedvlp.tools.compare.printing import format_tables, table_text
from fedvlp.tools.compare.tables import LAST, Table, tables
from fedvlp.tools.report.figures import accuracy_over_rounds

DOCS = Path(__file__).resolve().parents[1]
README = DOCS.parent / "README.md"
TUTORIAL = DOCS / "tutorial.md"
MARK = "<!-- table: written by docs/_scripts/refresh.py -->\n"
SWEEP_MARK = "<!-- sweep: written by docs/_scripts/refresh.py -->\n"


def with_table(text: str, run: Path) -> str:
    """Replace the table under the mark in the README's text by the run's table."""
    accuracy = json.loads((run / "summary.json").read_text(encoding="utf-8"))["accuracy"]
    return _with_block(text, MARK, format_accuracies(list(accuracy.items())))


def with_sweep(text: str, table: Table) -> str:
    """Replace the table under the mark in the tutorial's text by the output of ``fedvlp compare`` for the sweep."""
    return _with_block(text, SWEEP_MARK, format_tables([table_text(table)], "table"))


def sweep_table(folder: Path) -> Table:
    """Make the only table of a sweep, with last rounds."""
    (table,) = tables(find_records([folder])[0], (LAST,))
    return table


def _with_block(text: str, mark: str, block: str) -> str:
    found = re.compile(re.escape(mark) + r"(\n```text\n.*?\n```\n)?", re.DOTALL)
    return found.sub(lambda _: f"{mark}\n```text\n{block.strip()}\n```\n", text, count=1)


def main(run: Path, sweep: Path) -> None:
    """Write both tables and both pictures."""
    table = sweep_table(sweep)
    README.write_text(with_table(README.read_text(encoding="utf-8"), run), encoding="utf-8")
    TUTORIAL.write_text(with_sweep(TUTORIAL.read_text(encoding="utf-8"), table), encoding="utf-8")
    shutil.copyfile(run / "accuracy.png", DOCS / "quickstart.png")
    picture = accuracy_over_rounds(table)
    picture.figure.savefig(DOCS / "comparison.png", dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
