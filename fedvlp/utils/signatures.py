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
    """Returns the same by name, with what is known of each."""
    parameters: dict[str, inspect.Parameter] = {}
    # A constructor with `**options` also takes what the next one in the order of classes takes.
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        passes_on = False
        for each in list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]:
            if each.kind is each.VAR_KEYWORD:
                passes_on = True
            elif each.kind is not each.VAR_POSITIONAL:
                parameters.setdefault(each.name, each)
        if not passes_on:
            break
    return parameters


def exported_names(stub: Path) -> dict[str, str]:
    """Reads which names a stub exports, and from which module each comes.

    Args:
        stub: a ``.pyi`` file of lines ``from module import Name as Name``, the form in which type checkers take an
            import for an export.

    Returns:
        The module of each name; constants first, then classes, then functions, each by the alphabet.
    """
    # Parsed and not imported: a stub is no module, and what it names would import torch.
    modules: dict[str, str] = {}
    for statement in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom):
            modules |= {alias.name: str(statement.module) for alias in statement.names}
    ordered = sorted(modules, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    return {name: modules[name] for name in ordered}
