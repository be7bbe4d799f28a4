"""Tables of strings: aligned columns for a terminal, or Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

SPECIAL = re.compile(r"^#|[\\`\[|]|:(?=//)|(?<=\w)\.(?=[^\W\d])")
"""What makes headings, code, links and pictures in Markdown; without their colon and dots, addresses are no links."""


def text_table(rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """Return rows as aligned columns with a rule under the first row.

    Args:
        rows: the cells; all rows have equally many.
        text_columns: how many of the first columns hold words, which are aligned left; the others are aligned right.

    >>> print(text_table([["name", "value"], ["a", "1.5"]]))
    name  value
    -----------
    a       1.5
    """
    head, *body = align_columns(rows, text_columns)
    return "\n".join(line.rstrip() for line in (head, "-" * len(head), *body))


def frame_table(frame: pd.DataFrame, text_columns: int = 1) -> str:
    """Return a frame of strings as aligned columns below their titles; arguments as of :func:`text_table`."""
    return text_table([list(frame), *frame.to_numpy().tolist()], text_columns)


def frame_markdown(frame: pd.DataFrame, text_columns: int = 1) -> str:
    """Return a frame of strings as a Markdown table; arguments as of :func:`text_table`."""
    alignment = ["---"] * text_columns + ["---:"] * (frame.shape[1] - text_columns)
    rows = [list(map(markdown_text, row)) for row in frame.to_numpy().tolist()]
    return markdown_table(list(map(markdown_text, frame)), alignment, rows)


def align_columns(rows: Sequence[Sequence[str]], text_columns: int = 1) -> list[str]:
    """Return one line for each row, with cells padded to the width of their column and two spaces between them."""
    columns = []
    for index, cells in enumerate(zip(*rows, strict=True)):
        width = max(map(len, cells))
        columns.append([cell.ljust(width) if index < text_columns else cell.rjust(width) for cell in cells])
    return ["  ".join(row) for row in zip(*columns, strict=True)]


def markdown_table(head: Sequence[str], alignment: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of cells that are Markdown; see :func:`markdown_text` for cells that are not."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, alignment, *rows))


def markdown_text(text: str) -> str:
    r"""Return a string in a line, also as a table's cell, without HTML, links and pictures.

    >>> print(markdown_text("a|b <c> [d](http://e.org)"))
    a\|b &lt;c&gt; \[d](http\://e\.org)
    """
    return SPECIAL.sub(r"\\\g<0>", html.escape(" ".join(text.split()), quote=False))
