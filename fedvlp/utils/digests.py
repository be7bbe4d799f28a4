"""The options of classes and objects as plain values, and digests of such values."""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import asdict, fields, is_dataclass
from typing import Any


def digest(value: Any) -> str:
    """Returns 16 hexadecimal digits that are equal for equal JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def to_jsonable(value: Any) -> Any:
    """Returns a value that JSON can hold, and that is the same for equal options.

    >>> to_jsonable({"depth": None, "domains": ("ink", "photo"), 3: {1}})
    {'depth': None, 'domains': ['ink', 'photo'], '3': '{1}'}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return to_jsonable(asdict(value))
    if isinstance(value, dict):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
    # What JSON has no form for is compared by its repr, which states the options of most classes.
    return value if value is None or isinstance(value, (str, int, float, bool)) else repr(value)


def constructor_arguments(kind: type) -> dict[str, inspect.Parameter]:
    """Returns all arguments that a class takes by name, those of its bases included where it passes them on.

    >>> class Base:
    ...     def __init__(self, depth=1): ...
    >>> class Method(Base):
    ...     def __init__(self, share=0.1, **options): ...
    >>> list(constructor_arguments(Method))
    ['share', 'depth']
    """
    arguments: dict[str, inspect.Parameter] = {}
    # A constructor with `**options` also takes what the next one in the order of classes takes.
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        passes_on = False
        for each in list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]:
            if each.kind is each.VAR_KEYWORD:
                passes_on = True
            elif each.kind is not each.VAR_POSITIONAL:
                arguments.setdefault(each.name, each)
        if not passes_on:
            break
    return arguments


def class_and_options(value: Any) -> dict[str, Any]:
    """The class and the fields of a dataclass's instance, and those of dataclasses in it, as results hold them."""
    described: dict[str, Any] = {"class": type(value).__name__}
    for field in fields(value):
        option = getattr(value, field.name)
        described[field.name] = class_and_options(option) if is_dataclass(option) else option
    return described
