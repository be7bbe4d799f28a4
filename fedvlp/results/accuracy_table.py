"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvlp.core.roles import ROLES
from fedvlp.results.selection import best_round, is_accuracy, last_round
from fedvlp.utils.text_table import text_table

Rows = list[tuple[str, Mapping[str, Any]]]


def accuracy_table(baseline: Mapping[str, float], history: Sequence[Mapping[str, Any]]) -> Rows:
    """Returns the rows of the final table: zero-shot CLIP, the last round, and the round best on source validation."""
    rows: Rows = [("zero-shot CLIP", baseline)] if baseline else []
    last, best = last_round(history), best_round(history)
    if last is not None and best is not None:
        rows += [(f"last round ({last['round']})", last), (f"best on source validation ({best['round']})", best)]
    return rows


def accuracy_columns(rows: Rows) -> list[str]:
    """Returns the columns: each domain's accuracy and the mean, for source validation, test splits and held-out."""
    names = dict.fromkeys(name for _, row in rows for name in row if is_accuracy(name))
    return sorted(names, key=lambda name: (list(ROLES).index(name.split("/")[0]), "/" not in name, name))


def format_accuracies(rows: Rows) -> str:
    """Returns the accuracies in percent as a text table.

    A column of a held-out domain is marked with a star, one of a source domain's test split with a plus.

    >>> print(format_accuracies([("last round (1)", {"validation/ink": 50.0, "validation": 50.0, "test/ink": 7.5})]))
    accuracy in %     ink   mean  ink+
    ----------------------------------
    last round (1)  50.00  50.00  7.50
    """
    columns = accuracy_columns(rows)
    head = ["accuracy in %", *(_column_title(name) for name in columns)]
    body = [[title, *(f"{row[name]:.2f}" if name in row else "-" for name in columns)] for title, row in rows]
    return text_table([head, *body])


def _column_title(name: str) -> str:
    """Returns what stands above a column of accuracies."""
    role, _, domain = name.partition("/")
    mean = "mean" if role == "validation" else f"{ROLES[role]} mean"
    return (domain or mean) + {"validation": "", "test": "+", "held_out": "*"}[role]
