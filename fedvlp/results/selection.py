"""Which round is reported: the last, and the best on source validation. Target data never choose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedvlp.core.roles import COMPUTED, ROLES

HARM = 10.0
"""Percentage points below the untrained baseline from which accuracy is far below it."""
NEAR_CHANCE = 1.25
"""Up to how many times the accuracy of a guess counts as one."""

History = Sequence[Mapping[str, Any]]
"""A row of metrics for each round."""


def is_accuracy(name: str) -> bool:
    """Whether a metric is an accuracy: of one split, ``<role>/<domain>``, the mean of a role, or computed of these.

    >>> is_accuracy("test/photo"), is_accuracy("held_out"), is_accuracy("client/photo/loss")
    (True, True, False)
    """
    return name.split("/")[0] in ROLES or name in COMPUTED


def last_round(history: History) -> Mapping[str, Any] | None:
    """Returns the last evaluated round's row, or the last one where nothing was evaluated; None without rounds.

    >>> last_round([{"round": 1, "held_out": 9.0}, {"round": 2}])["round"]
    1
    """
    evaluated = [row for row in history if any(map(is_accuracy, row))]
    return [*history, *evaluated][-1] if history else None


def best_round(history: History) -> Mapping[str, Any] | None:
    """Returns the row of the round with the best mean source validation accuracy, the first of equals.

    >>> best_round([{"round": 1, "validation": 60.0, "held_out": 9.0}, {"round": 2, "validation": 50.0}])["round"]
    1
    """
    return oracle_round(history, "validation")


def oracle_round(history: History, role: str) -> Mapping[str, Any] | None:
    """Returns the row of the round with the highest mean accuracy of a role, the first of equals; None without one.

    Of any role but source validation this is an oracle, which no result may use. It is here to be subtracted: tables
    that report the best round on the test images are higher than those of a last round by as much as they were lucky.

    >>> oracle_round([{"round": 1, "held_out": 9.0}, {"round": 2, "held_out": 8.0}], "held_out")["round"]
    1
    """
    evaluated = [row for row in history if role in row]
    return max(evaluated, key=lambda row: row[role]) if evaluated else None


def divergence(baseline: Mapping[str, float], history: History, num_classes: int) -> str:
    """Returns a sentence if training diverged; empty if it did not, or that can't be known.

    It did if accuracy ended at chance, or far below the untrained baseline with a loss above that of the first round;
    in the first case the baseline, where there is one, must be clearly better than chance.

    Args:
        baseline: accuracies in percent before training; empty if not measured.
        history: the metrics of each round.
        num_classes: C, so that a guess is right in 100 / C percent.

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
    rose = losses[-1] > losses[0]
    if not (rose and (harmed or at_chance)) and not (at_chance and harmed):
        return ""
    before = f"{untrained:.2f} % untrained, " if role in baseline else ""
    return (
        f"Training seems to have diverged: accuracy is {accuracy:.2f} % ({before}{chance:.2f} % by chance), "
        f"the loss {losses[-1]:.3g} after {losses[0]:.3g}. Lower the learning rate."
    )


def _mean_loss(row: Mapping[str, Any]) -> float | None:
    """Returns the mean loss over the clients of a round; None if the method logs none."""
    if "clients/loss/mean" in row:
        return float(row["clients/loss/mean"])
    values = [value for name, value in row.items() if name.startswith("client/") and name.endswith("/loss")]
    return math.fsum(values) / len(values) if values else None
