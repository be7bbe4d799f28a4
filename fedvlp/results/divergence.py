"""Whether training did harm: what a run says of itself at its end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedvlp.results.selection import last_round

HARM = 10.0
"""Percentage points below the untrained baseline from which accuracy is far below it."""
NEAR_CHANCE = 1.25
"""Up to how many times the accuracy of a guess counts as one."""


def divergence(baseline: Mapping[str, float], history: Sequence[Mapping[str, Any]], num_classes: int) -> str:
    """Returns a sentence if training diverged; nothing if it did not, or nobody can tell.

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
    at_chance = accuracy <= NEAR_CHANCE * chance and not untrained <= 2 * NEAR_CHANCE * chance
    harmed = accuracy < untrained - HARM
    rose = losses[-1] > losses[0]
    if not (rose and (harmed or at_chance)) and not (at_chance and harmed):
        return ""
    known = f"{untrained:.2f} % untrained, " if role in baseline else ""
    return (
        f"Training seems to have diverged: accuracy is {accuracy:.2f} % ({known}{chance:.2f} % by chance), "
        f"the loss {losses[-1]:.3g} after {losses[0]:.3g}. Lower the learning rate."
    )


def _mean_loss(row: Mapping[str, Any]) -> float | None:
    """Returns the mean loss over the clients of a round; None if the method logs none."""
    if "clients/loss/mean" in row:
        return float(row["clients/loss/mean"])
    values = [value for name, value in row.items() if name.startswith("client/") and name.endswith("/loss")]
    return math.fsum(values) / len(values) if values else None
