"""Which round is reported: the last, and the best on source validation. Target data never choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvlp.core.roles import COMPUTED, ROLES


def is_accuracy(name: str) -> bool:
    """Whether a metric is an accuracy: of one split, ``<role>/<domain>``, the mean of a role, or computed of these.

    >>> is_accuracy("test/photo"), is_accuracy("held_out"), is_accuracy("client/photo/loss")
    (True, True, False)
    """
    return name.split("/")[0] in ROLES or name in COMPUTED


def last_round(history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Returns the last evaluated round's row, or the last one where nothing could be evaluated; None if none was run.

    >>> last_round([{"round": 1, "held_out": 9.0}, {"round": 2}])["round"]
    1
    """
    evaluated = [row for row in history if any(map(is_accuracy, row))]
    return [*history, *evaluated][-1] if history else None


def best_round(history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Returns the row of the round with the best mean source validation accuracy, the first of equals.

    >>> best_round([{"round": 1, "validation": 60.0, "held_out": 9.0}, {"round": 2, "validation": 50.0}])["round"]
    1
    """
    evaluated = [row for row in history if "validation" in row]
    return max(evaluated, key=lambda row: row["validation"]) if evaluated else None
