"""Rows of cells as a text table with aligned columns."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as aligned text, the first as the head; numbers to the right.

    >>> print(text_table([["name", "value"], ["a", "1.5"]]))
    name  value
    -----------
    a       1.5
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
