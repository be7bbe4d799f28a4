"""Write the README: what the cards of methods record about the code that their authors released.

Usage, in the repository's folder: ``python -m experiments.released_code.table``

A card's section "Released code" is a list of fields, such as ``* Licence: MIT``. Repositories, commits and licences
are separated by commas where there are several.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedvlp.utils.text_table import markdown_table

FOLDER = Path(__file__).resolve().parent
DOCS = FOLDER.parents[1] / "docs"
PAGE = FOLDER / "README.md"
COMMAND = "python -m experiments.released_code.table"
FIELDS = ("Repository", "Commit", "Licence", "Agrees", "Differs", "Cannot run")
HEAD = f"""<!-- written by {COMMAND} from the cards in docs/methods -->
# Agreement with the released code

This page records how far each method agrees with the code that its authors released, and where and why it differs. The
released modules ran on the CPU in float32, with the same random CLIP, images and random draws as fedvlp. Some 1,150
comparisons cover losses, gradients, an optimizer step and the servers' rules, and for 15 methods whole rounds. Nearly
all agree to 1e-5. The table has the tolerances that were recorded, and the commits that were read.

The last lists describe fedvlp, unless they name the released code. Deviations from the paper are in each method's
docstring. A config `methods/<method>_released` has the settings of the released code if they differ from the paper's.
"""


def page() -> str:
    """Make the page: a table, a list for each longer field, and the methods without such a section."""
    cards = {title_link(card): fields(card.read_text(encoding="utf-8")) for card in sorted(DOCS.glob("methods/*.md"))}
    known = {title: record for title, record in cards.items() if record}
    rows = [[title, *(record[field] for field in FIELDS[:4])] for title, record in known.items()]
    parts = [HEAD, markdown_table(["method", "repository", "commit", "licence", "what agrees"], ["---"] * 5, rows)]
    for heading, field in (("What differs, and why", "Differs"), ("What cannot run", "Cannot run")):
        lines = [f"* {title}: {record[field]}" for title, record in known.items() if field in record]
        parts.append("\n".join([f"\n## {heading}\n", *lines]))
    others = ", ".join(title for title, record in cards.items() if not record)
    parts.append(f"\n## Not compared\n\nNo comparison is recorded for {others}.\n")
    return "\n".join(parts)


def title_link(card: Path) -> str:
    """Link to a card by its title."""
    title = card.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return f"[{title}](../../docs/methods/{card.name})"


def fields(card: str) -> dict[str, str]:
    """Read the fields of a card's section on released code, each in one line. Empty without such a section."""
    section = card.partition("\n## Released code\n")[2].partition("\n## ")[0]
    found = {}
    for item in re.split(r"^\* ", section, flags=re.MULTILINE)[1:]:
        name, _, text = " ".join(item.split()).partition(": ")
        found[name] = text
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
