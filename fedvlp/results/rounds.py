"""Which rounds a run reports, the last and the best on source validation, and the table of them at its end."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from fedvlp.core.balance import COLUMNS, Balance, is_imbalanced
from fedvlp.core.roles import PROTOCOLS, ROLES
from fedvlp.results.record import BEST_ROW, LAST_ROW, row_of
from fedvlp.utils.text_table import text_table

HARM = 10.0
"""Percentage points below the untrained baseline from which accuracy is far below it."""
NEAR_CHANCE = 1.25
"""Up to how many times the accuracy of a guess counts as one."""

History = Sequence[Mapping[str, Any]]
"""A row of metrics for each round."""
AccuracyRows = Sequence[tuple[str, Mapping[str, Any]]]
"""Titles of rows, each with the accuracies in percent, by ``<role>/<domain>``, or by role for a mean."""


def is_accuracy(name: str) -> bool:
    """Whether a metric is an accuracy: ``<role>/<domain>``, the mean of a role, or computed of these."""
    return name.split("/")[0] in ROLES


def last_round(history: History) -> Mapping[str, Any] | None:
    """Return the last evaluated round's row, or the last one where nothing was evaluated; None without rounds.

    >>> last_round([{"round": 1, "held_out": 9.0}, {"round": 2}])["round"]
    1
    """
    evaluated = [row for row in history if any(map(is_accuracy, row))]
    return [*history, *evaluated][-1] if history else None


def best_round(history: History, role: str = "validation") -> Mapping[str, Any] | None:
    """Return the row of the round with the highest mean accuracy of a role, the first of equals; None without one.

    Of any role but source validation this is an oracle, which no result may use. It is here to be subtracted: tables
    that report the best round on the test images are higher than those of a last round by as much as they were lucky.

    >>> best_round([{"round": 1, "validation": 60.0, "held_out": 9.0}, {"round": 2, "validation": 50.0}])["round"]
    1
    """
    evaluated = [row for row in history if role in row]
    return max(evaluated, key=lambda row: row[role]) if evaluated else None


def divergence(baseline: Mapping[str, float], history: History, num_classes: int) -> str:
    """Return a sentence if training diverged; empty if it did not, or that can't be known.

    It did if accuracy ended at chance, or far below the untrained baseline with a loss above that of the first round;
    in the first case the baseline, if it was measured, must be clearly better than chance, 100 / C percent.

    >>> history = [{"client/a/loss": 1.0, "validation": 60.0}, {"client/a/loss": 9.0, "validation": 11.0}]
    >>> divergence({"validation": 70.0}, history, 10)
    'Training seems to have diverged: accuracy is 11.00 % (70.00 % untrained, 10.00 % by chance), the loss 9 after 1. \
Lower the learning rate.'
    """
    last = last_round(history) or {}
    role = next((role for role in ("validation", "held_out", "test") if role in last), None)
    losses = [loss for row in history if (loss := _mean_loss(row)) is not None]
    if role is None or len(losses) < 2:
        return ""
    accuracy = last[role]
    chance = 100 / num_classes
    untrained = baseline.get(role, math.nan)
    # Comparisons with NaN are false, so a baseline that is missing neither proves nor excuses anything.
    at_chance = accuracy <= NEAR_CHANCE * chance and not untrained <= 2 * NEAR_CHANCE * chance
    harmed = accuracy < untrained - HARM
    # A low accuracy on one split may be the split's; with a rising loss, or at chance, it is the training's.
    rose = losses[-1] > losses[0]
    if not (rose and (harmed or at_chance)) and not (at_chance and harmed):
        return ""
    before = f"{untrained:.2f} % untrained, " if role in baseline else ""
    return (
        f"Training seems to have diverged: accuracy is {accuracy:.2f} % ({before}{chance:.2f} % by chance), "
        f"the loss {losses[-1]:.3g} after {losses[0]:.3g}. Lower the learning rate."
    )


def _mean_loss(row: Mapping[str, Any]) -> float | None:
    # Of many clients the mean alone is logged, of few each one's.
    if "clients/loss/mean" in row:
        return float(row["clients/loss/mean"])
    values = [value for name, value in row.items() if name.startswith("client/") and name.endswith("/loss")]
    return math.fsum(values) / len(values) if values else None


def accuracy_table(baselines: Mapping[str, Mapping[str, float]], history: History) -> AccuracyRows:
    """Collect the rows of the final table: the baselines, the last round, and the round best on source validation."""
    rows = [(title, row) for title, row in baselines.items() if row]
    for name, row in ((LAST_ROW, last_round(history)), (BEST_ROW, best_round(history))):
        if row is not None:
            rows.append((f"{name} ({row['round']})", row))
    return rows


def accuracy_columns(rows: AccuracyRows) -> list[str]:
    """List the measured accuracies in the order of ``ROLES``: each domain's, then the mean of the role.

    Roles measured by client have only their mean, since clients may be many. So do all roles of base and new classes.
    """
    measured = set(filter(is_accuracy, chain.from_iterable(row for _, row in rows)))
    columns: list[str] = []
    for role in ROLES:
        if not ROLES[role].by_client and PROTOCOLS["base_to_new"].role not in measured:
            columns += sorted(name for name in measured if name.startswith(f"{role}/"))
        columns += [role] if role in measured else []
    return columns


def accuracy_cells(rows: AccuracyRows, balance: Mapping[str, Balance]) -> list[list[str]]:
    """Return the titles of the columns, then each row's title and its accuracies in percent.

    ``balance`` has scores by class, by the rows' titles without rounds. For imbalanced classes, the columns ``COLUMNS``
    follow the mean of a role.
    """
    by_class = dict(chain.from_iterable(scores.items() for scores in balance.values()))
    names = accuracy_columns(rows)
    titles: dict[str, str] = {}
    for name, title in zip(names, column_titles(names), strict=True):
        titles[name] = title
        if "/" not in name and name in by_class and is_imbalanced(by_class[name]):
            titles |= {f"{name}/{score}": title + ROLES[name].mark for title, score in COLUMNS.items()}
    table = [["accuracy in %", *titles.values()]]
    for title, row in rows:
        values = dict(row)
        for name, scores in balance.get(row_of(title), {}).items():
            values |= {f"{name}/{score}": scores[score] for score in COLUMNS.values()}
        table.append([title, *(f"{values[name]:.2f}" if name in values else "-" for name in titles)])
    return table


def format_accuracies(rows: AccuracyRows, balance: Mapping[str, Balance] | None = None) -> str:
    """Format :func:`accuracy_cells` as an aligned table.

    A column of a held-out domain is marked with a star, one of a source domain's test split with a plus.

    >>> print(format_accuracies([("last round (1)", {"validation/ink": 50.0, "validation": 50.0, "test/ink": 7.5})]))
    accuracy in %     ink   mean  ink+
    ----------------------------------
    last round (1)  50.00  50.00  7.50
    """
    return text_table(accuracy_cells(rows, balance or {}))


def column_titles(columns: Sequence[str]) -> list[str]:
    """Return the titles of columns: the domain, or which mean, with the mark of its role; or what was computed.

    >>> column_titles(["validation", "held_out/sketch"]), column_titles(["test", "test_new", "test_harmonic"])
    (['mean', 'sketch*'], ['Base', 'New', 'H'])
    """
    base_to_new = PROTOCOLS["base_to_new"]
    named: dict[str, str] = {}
    if base_to_new.role in columns:
        named = {role: title for title, role in base_to_new.columns.items()}
        named |= {base_to_new.role: base_to_new.mean, "validation": ROLES["validation"].title}
    titles = []
    for column in columns:
        role, _, domain = column.partition("/")
        titles.append(named.get(column) or (domain or ROLES[role].mean) + ROLES[role].mark)
    return titles
