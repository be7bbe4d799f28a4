"""The options of classes and objects as plain values, and digests of such values."""

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits that are equal for equal JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def to_jsonable(value: Any) -> Any:
    """Return a value that JSON can hold, and that is equal for equal options.

    A dataclass becomes its class and its options. Functions are left out, and so are fields with ``compare=False``,
    which change no result. A value that JSON has no form for becomes its repr.

    >>> from fractions import Fraction
    >>> to_jsonable({"depth": None, "domains": ("ink", "photo"), 3: Fraction(1, 2)})
    {'depth': None, 'domains': ['ink', 'photo'], '3': 'Fraction(1, 2)'}
    """
    if is_dataclass(value) and not isinstance(value, type):
        described = {"class": type(value).__qualname__}
        for field in fields(value):
            option = getattr(value, field.name)
            if field.compare and not callable(option):
                described[field.name] = to_jsonable(option)
        return described
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else repr(value)


def from_jsonable(value: Any, classes: Mapping[str, type]) -> Any:
    """Make again what :func:`to_jsonable` described; raise KeyError or TypeError for other classes or options."""
    if isinstance(value, list):
        return [from_jsonable(item, classes) for item in value]
    if not isinstance(value, dict):
        return value
    made = {name: from_jsonable(item, classes) for name, item in value.items() if name != "class"}
    return classes[value["class"]](**made) if "class" in value else made


def constructor_arguments(kind: type) -> dict[str, inspect.Parameter]:
    """Return all arguments that a class takes by name, those of its bases included where it passes them on.

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
