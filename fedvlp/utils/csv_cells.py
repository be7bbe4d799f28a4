"""Cells of CSV that no spreadsheet takes for a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
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


def csv_text(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    r"""Returns a table as CSV with a line of names; a row may have more than these, and lack some.

    >>> csv_text(["class", "images"], [{"class": "@cat", "images": 2, "seed": 0}])
    "class,images\n'@cat,2"
    """
    names = list(columns)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(csv_row(row.get(name, "") for name in names))
    return file.getvalue().rstrip("\n")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.strip() == text and "_" not in text
