"""Values as plain as JSON's, and digests of them: equal for equal options."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from types import ModuleType
from typing import Any


def digest(value: Any) -> str:
    """Returns 16 hexadecimal digits that are equal for equal JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def plain(value: Any) -> Any:
    """Returns a value that JSON can hold, and that is the same for equal options."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else repr(value)


def code_digest(function: Callable[..., Any], packages: tuple[str, ...] = ()) -> str:
    """Returns a digest of the source of a function, its module, and all modules of some packages that these refer to.

    Args:
        function: whose results may change with that source.
        packages: names of packages whose modules are followed, besides that of the function.
    """
    try:
        own = inspect.getsource(function)
    except OSError:  # typed at the prompt
        own = function.__code__.co_code.hex()
    home = str(function.__module__)
    followed = packages if _is_below(home, packages) else (home.split(".")[0], *packages)
    found: dict[str, str] = {}
    waiting = {home}
    while waiting:
        name = waiting.pop()
        if name not in found and name in sys.modules and _is_below(name, followed):
            found[name] = _source(sys.modules[name])
            waiting |= {_home(value) for value in vars(sys.modules[name]).values()}
    return digest([own, found])


def _is_below(name: str, packages: tuple[str, ...]) -> bool:
    """Whether a module is one of these or stands in one of them."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _home(value: Any) -> str:
    """Returns the name of a module, or of the module that defines a class or function."""
    return value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))


def _source(module: ModuleType) -> str:
    """Returns the source of a module; nothing for one that has none to read."""
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return ""
