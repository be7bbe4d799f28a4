"""What a summary claims, compared with what was found when its trained model was measured again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedvlp.results.record import BEST_ROW, LAST_ROW, ZERO_SHOT_ROW

MEASURED = ("accuracy", "metrics")
"""Parts of a summary whose numbers depend on arithmetic with images, in percent or points."""

ROW = re.compile(rf"{ZERO_SHOT_ROW}|({LAST_ROW}|{BEST_ROW}) \((?P<round>[0-9]+)\)")
"""The titles of a summary's accuracies."""

OF_TRAINING = ("rounds", "privacy", "seconds", "features", "versions", "plugins")
"""Parts of a summary that only the training itself can know."""


def contradictions(claimed: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Lists where a summary differs from what method, data and config make of a run, a line each.

    Args:
        claimed: the summary.
        found: what it must hold, except for ``MEASURED`` and ``OF_TRAINING``.
    """
    checked = {name: value for name, value in claimed.items() if name not in (*MEASURED, *OF_TRAINING)}
    return [*_differences(_comparable(checked), _comparable(found), 0.0), *_contradictions_within(claimed)]


def measured_contradictions(claimed: Mapping[str, Any], found: Mapping[str, Any], tolerance: float) -> list[str]:
    """Lists where a summary has other numbers than were measured, a line each.

    Args:
        claimed: the summary.
        found: ``accuracy`` and ``metrics`` of the last round and of zero-shot CLIP.
        tolerance: how far a number may be off, in points.
    """
    # Runs at sites have no metrics, since sites do not report predictions of single images.
    parts = [name for name in MEASURED if name in claimed]
    rows = {name: _measured_rows(claimed[name]) for name in parts}
    return _differences(rows, {name: found[name] for name in parts}, tolerance)


def not_measured_again(claimed: Mapping[str, Any]) -> list[str]:
    """Returns the parts of a summary that only its training can know."""
    parts = [name for name in OF_TRAINING if name in claimed]
    rows = [title for title in claimed.get("accuracy", {}) if not title.startswith((ZERO_SHOT_ROW, LAST_ROW))]
    return [*parts, *(f"the row {title!r}" for title in rows)]


def joined_contradictions(lines: Sequence[str], most: int = 6) -> str:
    """Returns the first of many lines, and how many more there are.

    >>> joined_contradictions(["split: …", "rounds: …"], most=1)
    'split: …; and 1 more'
    """
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return "; ".join([*lines[:most], *more])


def _measured_rows(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rows that are measured again, by titles without the number of their round."""
    measured = {}
    for title, row in rows.items():
        for name in (ZERO_SHOT_ROW, LAST_ROW):
            if title.startswith(name):
                measured[name] = row
    return measured


def _contradictions_within(claimed: Mapping[str, Any]) -> Iterator[str]:
    """Yields where a summary contradicts itself: the same round with two results, a last round that is not the last."""
    rows_by_round: dict[str, tuple[str, Any]] = {}
    for title, row in claimed["accuracy"].items():
        match = ROW.fullmatch(title)
        if match is None:
            yield f"accuracy.{title}: a summary has no such row"
            continue
        number = match["round"]
        if number is None:
            continue
        if title.startswith(LAST_ROW) and number != str(claimed["rounds"]):
            yield f"accuracy.{title}: the summary says rounds {claimed['rounds']}"
        first_title, first_row = rows_by_round.setdefault(number, (title, row))
        if first_row != row:
            yield f"accuracy.{title}: the summary says something else of the same round under {first_title!r}"


def _comparable(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out where CLIP's weights came from: their digest identifies them."""
    model = dict(summary["model"])
    model["init_args"] = {name: value for name, value in model["init_args"].items() if name != "clip"}
    return {**summary, "model": model}


def _differences(claimed: Mapping[str, Any], found: Mapping[str, Any], tolerance: float) -> list[str]:
    """Returns a line for each value that differs, sorted by its path in the summary."""
    # A summary was read from JSON, so the values that were found must be as JSON returns them, lists for tuples.
    claimed_values = dict(_flat(claimed))
    found_values = dict(_flat(json.loads(json.dumps(found))))
    lines = []
    for name in sorted(claimed_values.keys() | found_values.keys()):
        one, other = claimed_values.get(name), found_values.get(name)
        if not _are_close(one, other, tolerance):
            lines.append(f"{name}: the summary says {_short(one)}, found {_short(other)}")
    return lines


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each value with its path, such as ``training.betas[0]``; nothing of empty lists and mappings."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{name}[{index}]")
    else:
        yield name, value


def _are_close(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two values are equal, or numbers within the tolerance; nothing but NaN is close to NaN."""
    if isinstance(one, bool) or isinstance(other, bool) or not isinstance(one, (int, float)):
        return bool(one == other)
    if not isinstance(other, (int, float)):
        return False
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return abs(one - other) <= tolerance


def _short(value: Any, most: int = 80) -> str:
    """Returns a value for a message, cut where it is long."""
    if value is None:
        return "nothing"
    text = f"{value:.10g}" if isinstance(value, float) else json.dumps(value)
    return text if len(text) <= most else f"{text[:most]}…"
