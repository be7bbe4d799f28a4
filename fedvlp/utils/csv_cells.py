"""Cells of CSV that no spreadsheet takes for a formula."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_cell(value: Any) -> Any:
    """Returns a value as it may stand in a CSV: a text that begins as a formula does gets an apostrophe before it.

    >>> csv_cell("=1+1"), csv_cell("-1.5"), csv_cell(-2), csv_cell("cat")
    ("'=1+1", '-1.5', -2, 'cat')
    """
    if not isinstance(value, str) or not value.startswith(FORMULA_STARTS) or _is_number(value):
        return value
    return f"'{value}"


def csv_row(values: Iterable[Any]) -> list[Any]:
    """Returns each value of a row as :func:`csv_cell` does."""
    return [csv_cell(value) for value in values]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.strip() == text and "_" not in text
