"""Of which sort the values of messages between sites and their server are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

MAX_NUMBER = 2**63 - 1
MAX_NAME = 255
"""Bytes of a file's name, as most disks have it."""


class Field(NamedTuple):
    """What a value must be.

    Attributes:
        expected: the same in words.
        accepts: whether a value is so; raises nothing, whatever JSON it is given.
    """

    expected: str
    accepts: Callable[[Any], bool]


def is_count(value: Any) -> bool:
    """Whether a value is a whole number of at least 0 that 63 bits hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER


def is_plain_name(value: Any) -> bool:
    """Whether a value is the name of a file, with no folder before it."""
    return (
        isinstance(value, str)
        and 0 < len(value.encode("utf-8", "surrogatepass")) <= MAX_NAME
        and not value.startswith(".")
        and not set(value) & set("/\\:")
        and value.isprintable()
    )


def kind_of(value: Any) -> str:
    """Returns what sort of JSON a value is, and nothing of its content.

    >>> kind_of([1, 2]), kind_of(-3), kind_of("secret")
    ('a list', 'a negative whole number', 'a text')
    """
    if isinstance(value, (bool, type(None))):
        return "null" if value is None else "true or false"
    if isinstance(value, int):
        return "a negative whole number" if value < 0 else "a whole number"
    names = {float: "a number with decimals", str: "a text", list: "a list", dict: "an object"}
    return names[type(value)]


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value) and len(set(value)) == len(value)


COUNT = Field("a whole number of at least 0", is_count)
TEXT = Field("a text", lambda value: isinstance(value, str))
TEXTS = Field("a list of texts, none of them twice", _is_texts)
OBJECT = Field("an object", lambda value: isinstance(value, dict))
