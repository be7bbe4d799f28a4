"""What each kind of message must hold; all that crosses the network stands here, but for tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedvlp.sites.fields import COUNT, OBJECT, TEXT, TEXTS, Field, is_count, is_plain_name

LONGEST_REASON = 2000  # characters
MOST_VALUES = 1000  # of one object


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_factor(value: Any) -> bool:
    return _is_number(value) and 0 <= value < float("inf")


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 < value <= 1


def _is_file(value: Any) -> bool:
    return value == "" or is_plain_name(value)


def _is_reason(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_REASON


def _is_noise(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or value.keys() != {"clip_norm", "noise_multiplier", "seed"}:
        return False
    are_numbers = _is_factor(value["clip_norm"]) and _is_factor(value["noise_multiplier"])
    return are_numbers and value["clip_norm"] > 0 and (value["seed"] is None or is_count(value["seed"]))


def _of_texts(is_value: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Returns what accepts an object of such values, and not of too many."""
    return lambda value: isinstance(value, dict) and len(value) <= MOST_VALUES and all(map(is_value, value.values()))


FACTOR = Field("a number of at least 0", _is_factor)
SHARE = Field("a number above 0 and up to 1", _is_share)
FILE = Field("the plain name of a file, or nothing", _is_file)
COUNTS = Field("an object of whole numbers of at least 0", _of_texts(is_count))
NUMBERS = Field("an object of a few numbers", _of_texts(_is_number))
STRINGS = Field("an object of texts", _of_texts(lambda value: isinstance(value, str)))
TRUTH = Field("true or false", lambda value: isinstance(value, bool))
REASON = Field(f"a text of up to {LONGEST_REASON} characters", _is_reason)

NOISE = Field("null, or clip_norm, noise_multiplier and seed of a client's noise", _is_noise)

CLIENT = {"client": COUNT, "domain": COUNT}
KEPT = {"personal": FILE, "optimizer": FILE}

REQUESTS: Mapping[str, Mapping[str, Field]] = {
    "describe": {"run": TEXT, "data": OBJECT},
    "prepare": {"run": TEXT, "data": OBJECT, "model": OBJECT, "training": OBJECT, "fingerprint": TEXT, **CLIENT},
    "train": {
        "run": TEXT,
        "round": COUNT,
        "phase": COUNT,
        "seed": COUNT,
        "factor": FACTOR,
        "share": SHARE,
        "noise": NOISE,
        **CLIENT,
        **KEPT,
    },
    "evaluate": {"run": TEXT, "baseline": TRUTH, **CLIENT, **KEPT},
    "leave": {"run": TEXT},
}
"""What the server asks. ``prepare`` brings the tensors that every site begins with, ``train`` a download, ``evaluate``
what is deployed."""

REPLIES: Mapping[str, Mapping[str, Field]] = {
    "described": {"name": TEXT, "classes": TEXTS, "counts": COUNTS, "images": TEXT, "split": TEXT, "versions": STRINGS},
    "prepared": {"images": TEXT, "split": TEXT},
    "trained": {
        "round": COUNT,
        "phase": COUNT,
        "num_examples": COUNT,
        "metrics": NUMBERS,
        "finite": TRUTH,
        "retried": REASON,
        **KEPT,
    },
    "evaluated": {"correct": COUNTS, "count": COUNTS},
    "left": {},
    "unprepared": {},
    "failed": {"reason": REASON},
}
"""What a site answers. ``trained`` brings the upload; no other reply has tensors."""
