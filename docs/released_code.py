"""Writes ``docs/released_code.md``: what the cards of methods say of the code that their authors released.

Usage, in the repository's folder: ``python -m docs.released_code``

A card's section "Released code" is a list of fields, such as ``* Licence: MIT``. Repositories, commits and licences
are separated by commas where there are several.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedvlp.utils.text_table import markdown_table

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "released_code.md"
COMMAND = "python -m docs.released_code"
FIELDS = ("Repository", "Commit", "Licence", "Agrees", "Differs", "Cannot run")
HEAD = f"""<!-- written by {COMMAND} from the cards in docs/methods -->
# Beside the released code

After this page you know how far each method agrees with the code that its authors released, and where and why it does
not. The released modules ran on the CPU in float32, with the same random CLIP, the same images and the same draws as
ours. Compared were losses, gradients, an optimizer step and rules of servers, and for 15 methods whole rounds: some
1,150 comparisons, nearly all of which agree to 1e-5. Where no number of them stands, none was recorded. A commit is the
one whose files were read for this page.

What differs from the papers stands under "Departures" in each method's docstring. A config `methods/<method>_released`
has the settings of the released code where these are not the paper's.
"""


def page() -> str:
    """Returns the page: a table, a list for each of the longer fields, and the methods that have no such section."""
    cards = {title_link(card): fields(card.read_text(encoding="utf-8")) for card in sorted(DOCS.glob("methods/*.md"))}
    known = {title: said for title, said in cards.items() if said}
    rows = [[title, *(said[field] for field in FIELDS[:4])] for title, said in known.items()]
    parts = [HEAD, markdown_table(["method", "repository", "commit", "licence", "what agrees"], ["---"] * 5, rows)]
    for heading, field in (("What differs, and why", "Differs"), ("What cannot run", "Cannot run")):
        lines = [f"* {title}: {said[field]}" for title, said in known.items() if field in said]
        parts.append("\n".join([f"\n## {heading}\n", *lines]))
    others = ", ".join(title for title, said in cards.items() if not said)
    parts.append(f"\n## Not compared\n\nNo comparison is recorded for {others}.\n")
    return "\n".join(parts)


def title_link(card: Path) -> str:
    """Returns a card's title as a link from the page to the card."""
    title = card.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return f"[{title}](methods/{card.name})"


def fields(card: str) -> dict[str, str]:
    """Returns the fields of a card's section on released code, each in one line; none where it has no such section."""
    section = card.partition("\n## Released code\n")[2].partition("\n## ")[0]
    found = {}
    for item in re.split(r"^\* ", section, flags=re.MULTILINE)[1:]:
        name, _, text = " ".join(item.split()).partition(": ")
        found[name] = text
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
