"""Writes the pages of the reference: every public name, once, below the package that it belongs to.

``fedvlp.__all__`` and ``__all__`` of each package below it say what is public. Files go to ``docs/reference``, which
git does not keep; those that did not change are left alone, so that Sphinx need not read them again.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType

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


def public_packages() -> list[ModuleType]:
    """Returns every package with public names below fedvlp, and the modules that have such, in order of their paths."""
    packages = sorted(file.parent for file in ROOT.glob("*/**/__init__.py") if "__all__" in file.read_text("utf-8"))
    names = [".".join(folder.relative_to(ROOT.parent).parts) for folder in packages]
    return [importlib.import_module(name) for name in sorted([*names, *MODULES]) if "._" not in name]


def pages() -> dict[str, list[str]]:
    """Returns the names that each page documents, by the package that the page is of.

    A name of fedvlp itself stands under that one, on the page of the innermost package from which it comes; one that
    two packages have stands in the first alone.
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
    """Writes a page for each package, and takes away those of packages that are gone."""
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
    """Returns the text of the page of a package."""
    lines = [path, "=" * len(path), "", f".. automodule:: {path}", "   :no-members:", "   :no-index:", ""]
    for name in names:
        directive = _directive(name)
        lines += [f".. {directive}:: {name}", *(["   :no-value:"] if directive == "autodata" else []), ""]
    return "\n".join(lines)


def _public_names(module: ModuleType) -> list[str]:
    """Returns the names in ``__all__``; where there is none, those of the classes that the module defines."""
    classes = inspect.getmembers(module, lambda value: inspect.isclass(value) and value.__module__ == module.__name__)
    return list(getattr(module, "__all__", [name for name, _ in classes if not name.startswith("_")]))


def _home(value: object, packages: dict[str, ModuleType]) -> str:
    """Returns the innermost package that a public object comes from; fedvlp itself if there is none."""
    module = getattr(value, "__module__", FACADE)
    holding = [path for path in packages if f"{module}.".startswith(f"{path}.")]
    return max(holding, key=len, default=FACADE)


def _directive(name: str) -> str:
    """Returns autodoc's directive for a public name."""
    path, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(path), attribute)
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, Exception) else "autoclass"
    return "autofunction" if inspect.isfunction(value) else "autodata"
