"""Tables of strings: aligned columns for a terminal, or Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

SPECIAL = re.compile(r"^#|[\\`\[|]|:(?=//)|(?<=\w)\.(?=[^\W\d])")
"""Characters that start headings, code, links and pictures in Markdown, and the colon and dots of addresses."""


def text_table(rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """Format rows as aligned columns with a rule under the first row.

    Args:
        rows: The cells. All rows have the same number of cells.
        text_columns: Number of leading text columns, which are aligned left; the others are aligned right.

    >>> print(text_table([["name", "value"], ["a", "1.5"]]))
    name  value
    -----------
    a       1.5
    """
    columns = []
    for index, cells in enumerate(zip(*rows, strict=True)):
        width = max(map(len, cells))
        columns.append([cell.ljust(width) if index < text_columns else cell.rjust(width) for cell in cells])
    head, *body = ["  ".join(row) for row in zip(*columns, strict=True)]
    return "\n".join(line.rstrip() for line in (head, "-" * len(head), *body))


def frame_table(frame: pd.DataFrame, text_columns: int = 1) -> str:
    """Format a frame of strings as aligned columns below their titles, like :func:`text_table`."""
    return text_table([list(frame), *frame.to_numpy().tolist()], text_columns)


def frame_markdown(frame: pd.DataFrame, text_columns: int = 1) -> str:
    """Format a frame of strings as a Markdown table; ``text_columns`` as in :func:`text_table`."""
    alignment = ["---"] * text_columns + ["---:"] * (frame.shape[1] - text_columns)
    rows = [list(map(markdown_text, row)) for row in frame.to_numpy().tolist()]
    return markdown_table(list(map(markdown_text, frame)), alignment, rows)


def markdown_table(head: Sequence[str], alignment: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format Markdown cells as a table. Use :func:`markdown_text` for cells of plain text."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, alignment, *rows))


def markdown_text(text: str) -> str:
    r"""Escape a string to one line of Markdown, e.g. for a table cell, without HTML, links and pictures.

    >>> print(markdown_text("a|b <c> [d](http://e.org)"))
    a\|b &lt;c&gt; \[d](http\://e\.org)
    """
    return SPECIAL.sub(r"\\\g<0>", html.escape(" ".join(text.split()), quote=False))
