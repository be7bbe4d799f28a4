"""JSON that a stranger may have written: parsed within bounds, or refused."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

MAX_DEPTH = 32


def parse_json(text: str, max_depth: int = MAX_DEPTH) -> Any:
    """Returns the value of a JSON text.

    Args:
        text: the JSON.
        max_depth: how many lists and objects may stand inside one another.

    Raises:
        ValueError: if the text is no JSON or is nested more deeply; the message holds nothing of the text.

    >>> parse_json('{"rounds": [1, 2]}', max_depth=2)
    {'rounds': [1, 2]}
    >>> parse_json('[[[]]]', max_depth=2)
    Traceback (most recent call last):
    ValueError: JSON is nested more than 2 deep
    """
    too_deep = ValueError(f"JSON is nested more than {max_depth} deep")
    try:
        value = json.loads(text)
    except RecursionError:
        raise too_deep from None
    except ValueError as error:  # also of numbers of thousands of digits
        raise ValueError("not valid JSON") from error
    level = [value]
    for _ in range(max_depth):
        level = list(chain.from_iterable(map(_children, level)))
    if any(isinstance(each, (dict, list)) for each in level):
        raise too_deep
    return value


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
