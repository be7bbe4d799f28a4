"""Rows of metrics as text, each made once however often all of them are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class RowSerializer:
    """Keeps the text of each row of metrics, so that writing all rows after each round costs one row.

    Args:
        serialize: from a row to its text.
    """

    def __init__(self, serialize: Callable[[dict[str, Any]], str]) -> None:
        self.serialize = serialize
        self.texts: list[str] = []
        self.last_row: dict[str, Any] | None = None

    def serialize_all(self, rows: Sequence[dict[str, Any]]) -> list[str]:
        """Returns the texts of rows, which are those of the last call or the same and more; others are made anew."""
        if not self._continues(rows):
            self.texts = []
        self.texts += map(self.serialize, rows[len(self.texts) :])
        self.last_row = rows[-1] if rows else None
        return self.texts

    def _continues(self, rows: Sequence[dict[str, Any]]) -> bool:
        """Whether the rows begin with those of the last call; rows are compared by identity, which is fast."""
        known = len(self.texts)
        if known == 0:
            return True
        return known <= len(rows) and rows[known - 1] is self.last_row
