"""The oracle: the round that is best on the very images that are compared, which no result may choose.

It is here to be subtracted. Tables that report the best round on the test set are higher than those of a last round by
as much as they were lucky; the gap says by how much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvlp.results.record import Record

NOT_ALLOWED = "oracle, not allowed"
"""What tables call the row."""


def oracle_round(history: Sequence[Mapping[str, Any]], role: str) -> Mapping[str, Any] | None:
    """Returns the row of the round with the highest mean accuracy of a role, the first of equals; None of no round.

    >>> oracle_round([{"round": 1, "held_out": 9.0}, {"round": 2, "held_out": 8.0}], "held_out")["round"]
    1
    """
    evaluated = [row for row in history if role in row]
    return max(evaluated, key=lambda row: row[role]) if evaluated else None


def oracle(record: Record, role: str) -> Mapping[str, float]:
    """Returns the accuracies of that round of a run in percent; empty if its rounds are not known.

    Source validation may choose, so there is no oracle of it.
    """
    return {} if role == "validation" else (oracle_round(record.history, role) or {})


def differences(
    scores: Mapping[int, Mapping[str, float]], others: Mapping[int, Mapping[str, float]]
) -> dict[int, dict[str, float]]:
    """Returns the accuracies of one row less those of another, by seed and column, of what both have.

    >>> differences({0: {"ink": 64.0, "oil": 50.0}}, {0: {"ink": 62.5}, 1: {"oil": 40.0}})
    {0: {'ink': 1.5}}
    """
    found: dict[int, dict[str, float]] = {}
    for seed, accuracies in scores.items():
        last = others.get(seed, {})
        found[seed] = {name: value - last[name] for name, value in accuracies.items() if name in last}
    return found
