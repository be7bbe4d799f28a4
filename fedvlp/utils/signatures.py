"""What can be known of code without running it: the arguments of a class, and the names that a stub exports."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path


def constructor_arguments(kind: type) -> list[str]:
    """Returns the names of all arguments that a class takes, those of its bases included where it passes them on.

    >>> class Base:
    ...     def __init__(self, depth=1): ...
    >>> class Method(Base):
    ...     def __init__(self, share=0.1, **options): ...
    >>> constructor_arguments(Method)
    ['share', 'depth']
    """
    return list(constructor_parameters(kind))


def constructor_parameters(kind: type) -> dict[str, inspect.Parameter]:
    """Returns the same by name, with what is known of each.

    A constructor with ``**options`` takes what the next class takes whose constructor is its own.
    """
    parameters_by_name: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        own = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        for each in own:
            if each.kind not in variadic:
                parameters_by_name.setdefault(each.name, each)
        if not any(each.kind is each.VAR_KEYWORD for each in own):
            break
    return parameters_by_name


def exported_names(stub: Path) -> dict[str, str]:
    """Reads which names a stub exports, and from which module each comes.

    Args:
        stub: a ``.pyi`` file of lines ``from module import Name as Name``, the form in which type checkers take an
            import for an export.

    Returns:
        The module of each name; constants first, then classes, then functions, each by the alphabet.
    """
    modules = {}
    for statement in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                modules[alias.name] = str(statement.module)
    return {name: modules[name] for name in sorted(modules, key=_rank)}


def _rank(name: str) -> tuple[bool, bool, str]:
    """Sorts ``CONSTANT`` before ``Class`` before ``function``."""
    return not name.isupper(), not name[0].isupper(), name
