"""The reported rounds of a run, which are the last and the best on source validation, and the final table."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from fedvlp.core.balance import COLUMNS, Balance, is_imbalanced
from fedvlp.core.predictions import name_accuracy
from fedvlp.core.roles import PROTOCOLS, ROLES, SELECTION_METRICS, selection_column
from fedvlp.results.record import BEST_ROW, LAST_ROW, row_name
from fedvlp.utils.text_table import text_table

HARM = 10.0
"""Accuracy is far below the untrained baseline if it is lower by more than this many points."""
NEAR_CHANCE = 1.25
"""Accuracy counts as chance up to this multiple of it."""

History = Sequence[Mapping[str, Any]]
"""Rows of metrics, one per round."""
AccuracyRows = Sequence[tuple[str, Mapping[str, Any]]]
"""Rows with title and accuracies in percent, by ``<role>/<domain>``, or by role for the mean."""


def is_accuracy(name: str) -> bool:
    """Check whether a metric is an accuracy: ``<role>/<domain>``, the mean of a role, or computed from these."""
    return name.split("/")[0] in ROLES


def last_round(history: History) -> Mapping[str, Any] | None:
    """Find the row of the last evaluated round, or the last row if no round was evaluated; None without rounds.

    >>> last_round([{"round": 1, "held_out": 9.0}, {"round": 2}])["round"]
    1
    """
    evaluated = [row for row in history if any(map(is_accuracy, row))]
    return [*history, *evaluated][-1] if history else None


def best_round(history: History, column: str = "validation") -> Mapping[str, Any] | None:
    """Find the first row with the highest value of a column; None if no row has the column.

    For any images except source validation, this is an oracle, not a valid result. It measures by how many points
    a table is too high if it reports the best round on the test images.

    >>> best_round([{"round": 1, "validation": 60.0, "held_out": 9.0}, {"round": 2, "validation": 50.0}])["round"]
    1
    """
    evaluated = [row for row in history if column in row]
    return max(evaluated, key=lambda row: row[column]) if evaluated else None


def list_means(row: Mapping[str, Any]) -> list[str]:
    """List a round's mean accuracies, such as ``held-out 71.2 %``; no scores that are computed from them."""
    measured = [(role.title, row[name]) for name, role in ROLES.items() if name in row and not role.is_computed]
    return [f"{title} {accuracy:.1f} %" for title, accuracy in measured]


def divergence(baseline: Mapping[str, float], history: History, num_classes: int | None) -> str:
    """Make a warning if training diverged; empty otherwise, or if it is unknown.

    Training diverged if two of three signs are present: the loss rose, accuracy is far below the untrained baseline, or
    accuracy is at chance, 100 / C percent. Chance is no sign if the untrained baseline is close to it, too, or for
    several labels, whose chance depends on their frequency; ``num_classes`` is then None.

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
    chance = 100 / num_classes if num_classes else math.nan
    untrained = baseline.get(role, math.nan)
    # Comparisons with NaN are false, so a missing baseline or an unknown chance has no influence.
    at_chance = accuracy <= NEAR_CHANCE * chance and not untrained <= 2 * NEAR_CHANCE * chance
    is_far_below = accuracy < untrained - HARM
    # A low accuracy may be due to the split; with a rising loss, or at chance, it is due to training.
    rose = losses[-1] > losses[0]
    if not (rose and (is_far_below or at_chance)) and not (at_chance and is_far_below):
        return ""
    known = [f"{untrained:.2f} % untrained"] * (role in baseline) + [f"{chance:.2f} % by chance"] * bool(num_classes)
    return (
        f"Training seems to have diverged: {name_accuracy('accuracy', num_classes is None)} is {accuracy:.2f} % "
        f"({', '.join(known)}), the loss {losses[-1]:.3g} after {losses[0]:.3g}. Lower the learning rate."
    )


def _mean_loss(row: Mapping[str, Any]) -> float | None:
    # With many clients only the mean is logged, otherwise the loss of each client.
    if "clients/loss/mean" in row:
        return float(row["clients/loss/mean"])
    values = [value for name, value in row.items() if name.startswith("client/") and name.endswith("/loss")]
    return math.fsum(values) / len(values) if values else None


def accuracy_table(
    baselines: Mapping[str, Mapping[str, float]], history: History, select: str = "accuracy"
) -> AccuracyRows:
    """Collect the rows of the final table: baselines, last round, and best round on source validation by ``select``."""
    rows = [(title, row) for title, row in baselines.items() if row]
    by = "" if select == "accuracy" else f" by {SELECTION_METRICS[select]}"
    best = best_round(history, selection_column(select))
    for name, row, remark in ((LAST_ROW, last_round(history), ""), (BEST_ROW, best, by)):
        if row is not None:
            rows.append((f"{name} ({row['round']}){remark}", row))
    return rows


def accuracy_columns(rows: AccuracyRows) -> list[str]:
    """List the evaluated accuracies in the order of ``ROLES``: the domains of a role, then its mean.

    Roles evaluated by client have only a mean, because there may be many clients. With base and new classes, all roles
    have only a mean.
    """
    measured = set(filter(is_accuracy, chain.from_iterable(row for _, row in rows)))
    columns: list[str] = []
    for role in ROLES:
        if not ROLES[role].by_client and PROTOCOLS["base_to_new"].role not in measured:
            columns += sorted(name for name in measured if name.startswith(f"{role}/"))
        columns += [role] if role in measured else []
    return columns


def accuracy_cells(rows: AccuracyRows, balance: Mapping[str, Balance], score: str = "accuracy") -> list[list[str]]:
    """Make the cells of the final table: a row of column titles, then rows of titles and accuracies in percent.

    ``balance`` contains scores by class, by row title without round. For imbalanced classes, the columns ``COLUMNS``
    follow the mean of a role. ``score`` names the accuracies in the first cell.
    """
    by_class = dict(chain.from_iterable(scores.items() for scores in balance.values()))
    names = accuracy_columns(rows)
    titles: dict[str, str] = {}
    for name, title in zip(names, column_titles(names), strict=True):
        titles[name] = title
        if "/" not in name and name in by_class and is_imbalanced(by_class[name]):
            titles |= {f"{name}/{score}": title + ROLES[name].mark for title, score in COLUMNS.items()}
    table = [[f"{score} in %", *titles.values()]]
    for title, row in rows:
        values = dict(row)
        for name, scores in balance.get(row_name(title), {}).items():
            values |= {f"{name}/{score}": scores[score] for score in COLUMNS.values()}
        table.append([title, *(f"{values[name]:.2f}" if name in values else "-" for name in titles)])
    return table


def format_accuracies(rows: AccuracyRows, balance: Mapping[str, Balance] | None = None, score: str = "accuracy") -> str:
    """Format :func:`accuracy_cells` as an aligned table.

    A star marks columns of held-out domains, and a plus marks test splits of source domains.

    >>> print(format_accuracies([("last round (1)", {"validation/ink": 50.0, "validation": 50.0, "test/ink": 7.5})]))
    accuracy in %     ink   mean  ink+
    ----------------------------------
    last round (1)  50.00  50.00  7.50
    """
    return text_table(accuracy_cells(rows, balance or {}, score))


def column_titles(columns: Sequence[str]) -> list[str]:
    """Make column titles: the domain or the kind of mean with the mark of its role, or a computed score.

    >>> column_titles(["validation", "held_out/sketch"]), column_titles(["test", "test_new", "test_harmonic"])
    (['mean', 'sketch*'], ['Base', 'New', 'H'])
    """
    base_to_new = PROTOCOLS["base_to_new"]
    fixed: dict[str, str] = {}
    if base_to_new.role in columns:
        fixed = {role: title for title, role in base_to_new.columns.items()}
        fixed |= {base_to_new.role: base_to_new.mean, "validation": ROLES["validation"].title}
    titles = []
    for column in columns:
        role, _, domain = column.partition("/")
        titles.append(fixed.get(column) or (domain or ROLES[role].mean) + ROLES[role].mark)
    return titles
