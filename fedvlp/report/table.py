"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvlp.report.selection import best_round, last_round

Rows = list[tuple[str, Mapping[str, Any]]]


def accuracy_table(baseline: Mapping[str, float], history: Sequence[Mapping[str, Any]]) -> Rows:
    """Returns the rows of the final table: zero-shot CLIP, the last round, and the round best on source validation."""
    rows: Rows = [("zero-shot CLIP", baseline)] if baseline else []
    last, best = last_round(history), best_round(history)
    if last is not None and best is not None:
        rows += [(f"last round ({last['round']})", last), (f"best on source validation ({best['round']})", best)]
    return rows


def accuracy_columns(rows: Rows) -> list[str]:
    """Returns the columns: each domain's accuracy and the means, source validation first."""
    names = dict.fromkeys(name for _, row in rows for name in row if name.split("/")[0] in ("validation", "held_out"))
    return sorted(names, key=lambda name: (not name.startswith("validation"), "/" not in name, name))


def format_accuracies(rows: Rows) -> str:
    """Returns the accuracies in percent as a text table; a column of a held-out domain is marked with a star."""
    columns = accuracy_columns(rows)
    titles = {"validation": "mean", "held_out": "held-out mean*"}
    head = [
        "accuracy in %",
        *(titles.get(name, name.split("/")[-1] + "*" * name.startswith("held")) for name in columns),
    ]
    body = [[title, *(f"{row[name]:.2f}" if name in row else "-" for name in columns)] for title, row in rows]
    return text_table([head, *body])


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
