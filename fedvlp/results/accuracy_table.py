"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvlp.core.roles import COMPUTED, OF_CLIENTS, ROLES
from fedvlp.results.selection import best_round, is_accuracy, last_round
from fedvlp.utils.text_table import text_table

AccuracyRows = list[tuple[str, Mapping[str, Any]]]
"""Titles of rows, each with the accuracies in percent, by ``<role>/<domain>``, or by role for a mean."""

SUFFIXES = {"test": "+", "held_out": "*", "test_new": "+n", "held_out_new": "*n", "transfer": "&"}
"""The mark after a column's title, by role."""

ORDER = (
    "validation",
    "local",
    "test",
    "test_new",
    "test_harmonic",
    "held_out",
    "held_out_new",
    "held_out_harmonic",
    "transfer",
    "personal",
    "personal_worst",
    "personal_spread",
    "global",
    "global_worst",
    "global_spread",
)
"""The order of the columns, by role."""


def accuracy_table(baseline: Mapping[str, float], history: Sequence[Mapping[str, Any]]) -> AccuracyRows:
    """Returns the rows of the final table: zero-shot CLIP, the last round, and the round best on source validation."""
    rows: AccuracyRows = []
    if baseline:
        rows.append(("zero-shot CLIP", baseline))
    last = last_round(history)
    best = best_round(history)
    if last is not None:
        rows.append((f"last round ({last['round']})", last))
    if best is not None:
        rows.append((f"best on source validation ({best['round']})", best))
    return rows


def accuracy_columns(rows: AccuracyRows) -> list[str]:
    """Returns the columns: each domain's accuracy and the mean, for source validation, test splits and held-out.

    Of what is measured by client there are means alone, since clients may be many.
    """
    names: set[str] = set()
    for _, row in rows:
        names.update(name for name in row if is_accuracy(name) and ("/" not in name or _role(name) not in OF_CLIENTS))
    return sorted(names, key=_column_order)


def _column_order(name: str) -> tuple[int, bool, str]:
    """Returns a sort key: by role, domains before their mean, by name."""
    is_mean = "/" not in name
    return ORDER.index(_role(name)), is_mean, name


def _role(name: str) -> str:
    return name.split("/")[0]


def format_accuracies(rows: AccuracyRows) -> str:
    """Returns the accuracies in percent as an aligned table.

    A column of a held-out domain is marked with a star, one of a source domain's test split with a plus.

    >>> print(format_accuracies([("last round (1)", {"validation/ink": 50.0, "validation": 50.0, "test/ink": 7.5})]))
    accuracy in %     ink   mean  ink+
    ----------------------------------
    last round (1)  50.00  50.00  7.50
    """
    columns = accuracy_columns(rows)
    table = [["accuracy in %", *map(column_title, columns)]]
    for title, row in rows:
        table.append([title, *(f"{row[name]:.2f}" if name in row else "-" for name in columns)])
    return text_table(table)


def column_title(name: str) -> str:
    """Returns the title of a column: the domain, or which mean, with the mark of its role; or what was computed.

    >>> column_title("held_out/sketch"), column_title("validation")
    ('sketch*', 'mean')
    """
    role = _role(name)
    domain = name.partition("/")[2]
    if role in COMPUTED:
        return COMPUTED[role]
    mean = "mean" if role == "validation" else f"{ROLES[role]} mean"
    return (domain or mean) + SUFFIXES.get(role, "")
