"""Write the API reference: every public name once, on the page of its package, which starts with a table of contents.

Public names are in ``__all__`` of fedvlp and its packages. The pages are written to ``docs/reference``, which git
ignores. Unchanged files are not written, so Sphinx need not read them again.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import fedvlp

FACADE = "fedvlp"
MODULES = (
    "fedvlp.core.aggregation",
    "fedvlp.core.slots",
    "fedvlp.core.strategies",
    "fedvlp.methods",
    "fedvlp.training.local_training",
)
"""Packages and modules without ``__all__`` that have public classes."""
ROOT = Path(fedvlp.__path__[0])
MARK = re.compile(r"\||(?<![\w*])\*(?=[^\s*])(?![^*]*[^\s*]\*(?![\w*]))")
"""A bar, or a star that opens a word and is never closed."""


def public_packages() -> list[ModuleType]:
    """List the packages and modules below fedvlp with public names, sorted by path."""
    packages = sorted(file.parent for file in ROOT.glob("*/**/__init__.py") if "__all__" in file.read_text("utf-8"))
    names = [".".join(folder.relative_to(ROOT.parent).parts) for folder in packages]
    return [importlib.import_module(name) for name in sorted([*names, *MODULES]) if "._" not in name]


def pages() -> dict[str, list[str]]:
    """Map each package to the names on its page.

    A name of fedvlp itself is on the page of the innermost package that defines it. If two packages have a name, only
    the first lists it.
    """
    packages = {package.__name__: package for package in public_packages()}
    found: dict[str, list[str]] = {name: [] for name in [FACADE, *packages]}
    seen: set[int] = set()
    for name in fedvlp.__all__:
        value = getattr(fedvlp, name)
        if name.startswith("_") or inspect.ismodule(value):
            continue
        seen.add(id(value))
        found[_home(value, packages)].append(f"{FACADE}.{name}")
    for path, package in packages.items():
        for name in _public_names(package):
            value = getattr(package, name)
            if id(value) not in seen:
                found[path].append(f"{path}.{name}")
            seen.add(id(value))
    return {path: names for path, names in found.items() if names}


def write_reference(folder: Path) -> None:
    """Write a page for each package, and remove the pages of packages that no longer exist."""
    folder.mkdir(exist_ok=True)
    texts = {f"{path}.rst": page(path, names) for path, names in pages().items()}
    for file in folder.glob("*.rst"):
        if file.name not in texts:
            file.unlink()
    for name, text in texts.items():
        file = folder / name
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def page(path: str, names: list[str]) -> str:
    """Render the page of a package."""
    lines = [path, "=" * len(path), "", f".. automodule:: {path}", "   :no-members:", "   :no-index:", ""]
    lines += contents(names) if len(names) > 1 else []
    for name in names:
        directive = _directive(name)
        lines += [f".. {directive}:: {name}", *(["   :no-value:"] if directive == "autodata" else []), ""]
    return "\n".join(lines)


def contents(names: list[str]) -> list[str]:
    """Render a table of links to the names on a page, with the first line of each docstring."""
    lines = [".. list-table::", "   :widths: auto", ""]
    for name in names:
        value = _load(name)
        has_docstring = inspect.isclass(value) or inspect.isfunction(value)
        summary = inspect.cleandoc(value.__doc__ or "").partition("\n")[0] if has_docstring else ""
        lines += [f"   * - :py:obj:`~{name}`", f"     - {escape_marks(summary)}".rstrip()]
    return [*lines, ""]


def escape_marks(line: str) -> str:
    """Escape bars and single stars, which reStructuredText would interpret as markup, outside of backticks."""
    parts = re.split(r"(``.+?``|`[^`]+`)", line)
    parts[::2] = [MARK.sub(r"\\\g<0>", part) for part in parts[::2]]
    return "".join(parts)


def _public_names(module: ModuleType) -> list[str]:
    """List the names in ``__all__``, or without it the classes that the module defines."""
    classes = inspect.getmembers(module, lambda value: inspect.isclass(value) and value.__module__ == module.__name__)
    return list(getattr(module, "__all__", [name for name, _ in classes if not name.startswith("_")]))


def _home(value: object, packages: dict[str, ModuleType]) -> str:
    """Find the innermost package that defines a public object, or else fedvlp itself."""
    module = getattr(value, "__module__", FACADE)
    holding = [path for path in packages if f"{module}.".startswith(f"{path}.")]
    return max(holding, key=len, default=FACADE)


def _load(name: str) -> Any:
    path, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(path), attribute)


def _directive(name: str) -> str:
    value = _load(name)
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, Exception) else "autoclass"
    return "autofunction" if inspect.isfunction(value) else "autodata"
