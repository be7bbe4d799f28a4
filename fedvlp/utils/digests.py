"""What options a class takes and an object has, and digests of options and of source code."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields, is_dataclass
from types import ModuleType
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


def code_digest(function: Callable[..., Any], packages: Sequence[str] = (), other_modules: Iterable[str] = ()) -> str:
    """Returns a digest of the source on which a function's results may depend.

    That is the source of the function, of the module that defines it, and of all modules that these refer to, directly
    or through others, as far as they are in some packages.

    Args:
        function: Whose results may change with that source.
        packages: Names of the packages whose modules are followed; a module to begin at that is in none of them adds
            its own top-level package.
        other_modules: Names of modules to begin at besides the function's, for example those of subclasses.
    """
    waiting = {str(function.__module__), *other_modules}
    followed = (*packages, *(name.split(".")[0] for name in waiting if not _is_below(name, packages)))
    sources: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        if name in sources or name not in sys.modules or not _is_below(name, followed):
            continue
        sources[name] = _source(sys.modules[name])
        # A module's globals are the modules that it imports, or classes and functions, which name theirs.
        for value in vars(sys.modules[name]).values():
            is_module = isinstance(value, ModuleType)
            waiting.add(value.__name__ if is_module else str(getattr(value, "__module__", "")))
    return digest([_source(function), sources])


def _is_below(name: str, packages: Iterable[str]) -> bool:
    """Whether a module is one of these or is in one of them."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _source(code: Any) -> str:
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):  # a compiled module, or a function that was typed at the prompt
        return code.__code__.co_code.hex() if hasattr(code, "__code__") else ""
