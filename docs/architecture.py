"""Writes the pictures and tables of ``docs/architecture.md`` that are made from the code.

Usage, in the repository's folder::

    python -m docs.architecture            write them anew
    python -m docs.architecture --check    say whether they are as the code is
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from docs.room_diagram import room_diagram, room_table
from docs.round_diagram import round_diagram
from docs.source_tree import read_package

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
COMMAND = "python -m docs.architecture"


def main(arguments: Sequence[str]) -> int:
    """Writes the page, or checks it, and returns the exit code."""
    text = PAGE.read_text(encoding="utf-8")
    made = with_parts(text, parts())
    if "--check" in arguments:
        sys.stdout.write("" if made == text else f"{PAGE.name} is older than the code: run {COMMAND}\n")
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


def parts() -> dict[str, str]:
    """Returns each part that is made from the code, by the name in its mark."""
    from tests.test_layers import ALLOWED

    package = read_package(ROOT)
    return {
        "rooms": room_diagram(package),
        "folders": room_table(package, ALLOWED),
        "round": round_diagram(package),
    }


def with_parts(text: str, made: Mapping[str, str]) -> str:
    """Returns a page with each part between its marks.

    Raises:
        ValueError: if the page lacks a mark.
    """
    for name, part in made.items():
        begin = f"<!-- {name}: written by {COMMAND} -->"
        end = f"<!-- end of {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"Expected one pair of marks, {begin} and {end}.")
        above = text.partition(begin)[0]
        below = text.partition(end)[2]
        text = f"{above}{begin}\n\n{part}\n\n{end}{below}"
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
