"""Tables of text cells: aligned columns for a terminal, or Markdown."""

from __future__ import annotations

import html
from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as aligned text with a rule under the first row: words to the left, numbers to the right.

    >>> print(text_table([["name", "value"], ["a", "1.5"]]))
    name  value
    -----------
    a       1.5
    """
    head, *body = align_columns(rows)
    return "\n".join([head, "-" * len(head), *body])


def align_columns(rows: Sequence[Sequence[str]], text_columns: int = 1) -> list[str]:
    """Returns one line for each row, with cells padded to the width of their column and two spaces between them.

    Args:
        rows: the cells; all rows have equally many.
        text_columns: how many of the first columns hold words, which stand to the left; the others stand to the right.

    >>> align_columns([["a", "b", "10"], ["cc", "d", "9"]], text_columns=2)
    ['a   b  10', 'cc  d   9']
    """
    columns = [
        _align_column(cells, is_text=index < text_columns) for index, cells in enumerate(zip(*rows, strict=True))
    ]
    return ["  ".join(row) for row in zip(*columns, strict=True)]


def _align_column(cells: Sequence[str], is_text: bool) -> list[str]:
    width = max(len(cell) for cell in cells)
    return [cell.ljust(width) if is_text else cell.rjust(width) for cell in cells]


def markdown_table(head: Sequence[str], alignment: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table; cells are Markdown, so texts of others go through :func:`markdown_cell` first.

    Args:
        head: titles of the columns.
        alignment: for each column ``---``, ``:---`` or ``---:``.
        rows: the cells.

    >>> print(markdown_table(["name", "value"], ["---", "---:"], [["a", "1.5"]]))
    | name | value |
    | --- | ---: |
    | a | 1.5 |
    """
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, alignment, *rows))


def markdown_text(text: str) -> str:
    """Returns a text in which no HTML has a meaning.

    >>> markdown_text("a <b> & c")
    'a &lt;b&gt; &amp; c'
    """
    return html.escape(text, quote=False)


def markdown_cell(text: str) -> str:
    r"""Returns a text as the cell of a Markdown table: as :func:`markdown_text` does, and with ``|`` escaped.

    >>> print(markdown_cell("a|b"))
    a\|b
    """
    return escape_pipes(markdown_text(text.replace("\n", " ")))


def escape_pipes(text: str) -> str:
    r"""Returns a text with each ``|``, and each backslash that could undo that, escaped.

    >>> print(escape_pipes("a|b"))
    a\|b
    """
    return text.replace("\\", "\\\\").replace("|", "\\|")
