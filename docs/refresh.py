"""Puts the table and the picture of a run of the README's first command into the documentation.

Usage, in the repository's folder: ``python docs/refresh.py runs/TRIP-StyledShapes-sketch/<time>``
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from fedvlp.report.table import format_accuracies

DOCS = Path(__file__).resolve().parent
README = DOCS.parent / "README.md"
MARK = "<!-- table: written by docs/refresh.py -->\n"


def with_table(text: str, run: Path) -> str:
    """Returns the README's text with the run's table under the mark, in place of the one that stood there."""
    accuracy = json.loads((run / "summary.json").read_text(encoding="utf-8"))["accuracy"]
    block = f"\n```text\n{format_accuracies(list(accuracy.items()))}\n```\n"
    found = re.compile(re.escape(MARK) + r"(\n```text\n.*?\n```\n)?", re.DOTALL)
    return found.sub(lambda _: MARK + block, text, count=1)


def main(run: Path) -> None:
    """Writes both."""
    README.write_text(with_table(README.read_text(encoding="utf-8"), run), encoding="utf-8")
    shutil.copyfile(run / "accuracy.png", DOCS / "quickstart.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
