"""Rows of metrics as text, each made once however often all of them are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]


class RowTexts:
    """Remembers the text of each row.

    Args:
        make: from a row to its text.
    """

    def __init__(self, make: Callable[[Row], str]) -> None:
        self.make = make
        self.texts: list[str] = []
        self.last: Row | None = None

    def of(self, rows: Sequence[Row]) -> list[str]:
        """Returns the texts of the rows, which are those of the last call or the same and more."""
        known = len(self.texts)
        if known > len(rows) or (known and rows[known - 1] is not self.last):
            self.texts, known = [], 0
        self.texts += map(self.make, rows[known:])
        self.last = rows[-1] if rows else None
        return self.texts
