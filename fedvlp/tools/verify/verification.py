"""What a summary claims, beside what was found when its trained model was measured again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedvlp.results.confusion import LAST_ROW, ZERO_SHOT_ROW

MEASURED = ("accuracy", "metrics")
"""Parts of a summary whose numbers rest on arithmetic with images, in percent or points."""

ROW = re.compile(rf"{ZERO_SHOT_ROW}|({LAST_ROW}|best on source validation) \((?P<round>[0-9]+)\)")
"""The titles of a summary's accuracies."""

OF_TRAINING = ("rounds", "privacy", "seconds", "features", "versions", "plugins")
"""Parts of a summary of which only the training itself can tell."""


def contradictions(claimed: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Lists where a summary says something else of a run than method, data and config do, a line each.

    Args:
        claimed: the summary.
        found: what it must say, but for ``MEASURED`` and ``OF_TRAINING``.
    """
    told = {name: value for name, value in claimed.items() if name not in (*MEASURED, *OF_TRAINING)}
    summary = _comparable(told)
    expected = _comparable(_plain(found))
    lines = []
    for name in sorted(summary.keys() | expected.keys()):
        lines += _differences(summary.get(name), expected.get(name), 0.0, name)
    return [*lines, *_contradictions_within(claimed)]


def measured_contradictions(claimed: Mapping[str, Any], found: Mapping[str, Any], tolerance: float) -> list[str]:
    """Lists where a summary has other numbers than were measured, a line each.

    Args:
        claimed: the summary.
        found: ``accuracy`` and ``metrics`` of the last round and of zero-shot CLIP.
        tolerance: how far a number may be off, in points.
    """
    lines = []
    for name in MEASURED:
        if name in claimed:  # metrics are missing of a run that nobody told what its images were taken for
            lines += _differences(_measured_rows(claimed[name]), _plain(found[name]), tolerance, name)
    return lines


def not_measured_again(claimed: Mapping[str, Any]) -> list[str]:
    """Returns what of a summary nobody but its training can tell."""
    parts = [name for name in OF_TRAINING if name in claimed]
    rows = [title for title in claimed.get("accuracy", {}) if _measured_title(title) is None]
    return [*parts, *(f"the row {title!r}" for title in rows)]


def _measured_rows(rows: Mapping[str, Any]) -> dict[str | None, Any]:
    """Returns the rows that are measured again, by titles without the number of their round."""
    return {_measured_title(title): row for title, row in rows.items() if _measured_title(title) is not None}


def _measured_title(title: str) -> str | None:
    """Returns which row a title is of; None of one that needs another model than the last round's."""
    return next((known for known in (ZERO_SHOT_ROW, LAST_ROW) if title.startswith(known)), None)


def _contradictions_within(claimed: Mapping[str, Any]) -> Iterator[str]:
    """Yields where a summary contradicts itself: the same round with two results, a last round that is not the last."""
    of_round: dict[str, tuple[str, Any]] = {}
    for title, row in claimed["accuracy"].items():
        found = ROW.fullmatch(title)
        if found is None:
            yield f"accuracy.{title}: a summary has no such row"
            continue
        number = found["round"]
        if number is None:
            continue
        if title.startswith(LAST_ROW) and number != str(claimed["rounds"]):
            yield f"accuracy.{title}: the summary says rounds {claimed['rounds']}"
        known_title, known = of_round.setdefault(number, (title, row))
        if known != row:
            yield f"accuracy.{title}: the summary says something else of the same round under {known_title!r}"


def _comparable(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out where CLIP's weights came from: their digest says what they are."""
    model = dict(summary["model"])
    model["init_args"] = {name: value for name, value in model["init_args"].items() if name != "clip"}
    return {**summary, "model": model}


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what JSON makes of a value, as summaries are read."""
    plain: dict[str, Any] = json.loads(json.dumps(value))
    return plain


def _differences(claimed: Any, found: Any, tolerance: float, name: str) -> list[str]:
    if isinstance(claimed, Mapping) and isinstance(found, Mapping):
        lines = []
        for key in sorted(claimed.keys() | found.keys()):
            lines += _differences(claimed.get(key), found.get(key), tolerance, f"{name}.{key}")
        return lines
    if _are_lists(claimed, found):
        lines = []
        for place, (one, other) in enumerate(zip(claimed, found, strict=True)):
            lines += _differences(one, other, tolerance, f"{name}[{place}]")
        return lines
    is_equal = _are_close(claimed, found, tolerance)
    return [] if is_equal else [f"{name}: the summary says {_short(claimed)}, found {_short(found)}"]


def _are_lists(one: Any, other: Any) -> bool:
    return isinstance(one, list) and isinstance(other, list) and len(one) == len(other)


def _are_close(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two values are equal, or numbers that are; nothing but NaN is close to NaN."""
    if not (_is_number(one) and _is_number(other)):
        return bool(one == other)
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return bool(abs(one - other) <= tolerance)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any, most: int = 80) -> str:
    """Returns a value as a reader wants it, cut where it is long."""
    if value is None:
        return "nothing"
    text = f"{value:.10g}" if isinstance(value, float) else json.dumps(value)
    return text if len(text) <= most else f"{text[:most]}…"


def joined_contradictions(lines: Sequence[str], most: int = 6) -> str:
    """Returns the first of many lines, and how many more there are.

    >>> joined_contradictions(["split: …", "rounds: …"], most=1)
    'split: …; and 1 more'
    """
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return "; ".join([*lines[:most], *more])
