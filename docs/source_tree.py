"""A package read as text: its modules, what they import of each other, and the rooms in which they lie.

A room is a folder that holds ``.py`` files, or a file that lies directly in the package. Nothing is imported, so that
trees of any age can be read. All imports count, those in functions and those for type checkers too; names in strings,
such as arguments of ``import_module``, do not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from docs.graphs import Graph


@dataclass(frozen=True)
class Module:
    """One ``.py`` file.

    Attributes:
        name: its dotted name, such as ``fedvlp.clip.backbone``; a folder's name for its ``__init__.py``.
        place: its path below the package.
        text: its source.
    """

    name: str
    place: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed source."""
        return ast.parse(self.text)

    @property
    def room(self) -> str:
        """The folder, such as ``clip/text``, or the name of a file that lies directly in the package."""
        folder = self.place.parent.as_posix()
        return self.place.stem if folder == "." else folder


@dataclass(frozen=True)
class Package:
    """The modules of a package.

    Attributes:
        name: what it is imported as.
        modules: every module by its dotted name.
    """

    name: str
    modules: dict[str, Module]

    @cached_property
    def imports(self) -> Graph:
        """From each module to the other modules of the package that it imports."""
        return {name: set(self._imported(module)) - {name} for name, module in self.modules.items()}

    @cached_property
    def room_imports(self) -> Graph:
        """From each room to the other rooms from which its files import."""
        graph: Graph = {module.room: set() for module in self.modules.values()}
        for name, imported in self.imports.items():
            room = self.modules[name].room
            graph[room] |= {self.modules[other].room for other in imported} - {room}
        return graph

    def _imported(self, module: Module) -> Iterator[str]:
        """Yields the modules of the package that a module names in its imports."""
        for node in ast.walk(module.tree):
            for name in _named(node, module):
                if name.split(".")[0] == self.name:
                    yield self._known(name)

    def _known(self, name: str) -> str:
        """The module that a dotted name is of: itself, or the one in which it is defined."""
        while name not in self.modules and "." in name:
            name = name.rpartition(".")[0]
        return name


def read_package(path: Path) -> Package:
    """Reads a package's folder, or the package ``fedvlp`` of a checkout.

    Raises:
        FileNotFoundError: if there is no ``__init__.py`` in either.
    """
    folder = path / "fedvlp" if (path / "fedvlp" / "__init__.py").is_file() else path
    if not (folder / "__init__.py").is_file():
        raise FileNotFoundError(f"{path} is neither a package nor a checkout of fedvlp.")
    folder = folder.resolve()
    modules: dict[str, Module] = {}
    for file in sorted(folder.rglob("*.py")):
        place = file.relative_to(folder)
        parts = [folder.name, *place.with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, place, file.read_text(encoding="utf-8"))
    return Package(folder.name, modules)


def _named(node: ast.AST, module: Module) -> list[str]:
    """The dotted names in an import; those of other nodes are none."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        parts = [_origin(node, module), node.module]
        origin = ".".join(part for part in parts if part)
        return [f"{origin}.{alias.name}" for alias in node.names]
    return []


def _origin(node: ast.ImportFrom, module: Module) -> str:
    """The package that the dots of a relative import mean; nothing for an absolute one."""
    if node.level == 0:
        return ""
    is_folder = module.place.name == "__init__.py"
    parts = module.name.split(".")
    return ".".join(parts[: len(parts) - node.level + is_folder])
