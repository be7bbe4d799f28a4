"""Describe options of classes and objects as JSON values, and compute digests of such values."""

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def digest(value: Any) -> str:
    """Hash a JSON value to 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def to_jsonable(value: Any) -> Any:
    """Convert a value to JSON values, equal for equal options.

    A dataclass becomes its class and its options, without functions and without fields with ``compare=False``, which
    change no result. Values without a JSON form become their repr.

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
    """Rebuild a value from :func:`to_jsonable`; raise KeyError or TypeError for unknown classes or options."""
    if isinstance(value, list):
        return [from_jsonable(item, classes) for item in value]
    if not isinstance(value, dict):
        return value
    items = {name: from_jsonable(item, classes) for name, item in value.items() if name != "class"}
    return classes[value["class"]](**items) if "class" in value else items


def constructor_arguments(kind: type) -> dict[str, inspect.Parameter]:
    """Collect all named arguments of a constructor, including arguments that it passes to its base classes.

    >>> class Base:
    ...     def __init__(self, depth=1): ...
    >>> class Method(Base):
    ...     def __init__(self, share=0.1, **options): ...
    >>> list(constructor_arguments(Method))
    ['share', 'depth']
    """
    arguments: dict[str, inspect.Parameter] = {}
    # A constructor with `**options` passes them to the next class in the method resolution order.
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        passes_on = False
        for argument in list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]:
            if argument.kind is argument.VAR_KEYWORD:
                passes_on = True
            elif argument.kind is not argument.VAR_POSITIONAL:
                arguments.setdefault(argument.name, argument)
        if not passes_on:
            break
    return arguments
