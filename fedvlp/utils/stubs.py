"""The names that a stub file gives to a package, so that they are written down in one place only."""

from __future__ import annotations

import ast
from pathlib import Path


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
