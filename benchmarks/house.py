"""How large the library is: lines, files, floors of imports and options, of checkouts beside each other.

``python -m benchmarks.house [CHECKOUT ...]`` prints the table. ``tests/test_budgets.py`` holds each number to a limit.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

APART = ("tools", "sites")
"""Folders on which nothing else in the library depends."""


class House:
    """The source of the library in a checkout, which is read and never imported.

    Args:
        checkout: folder that holds ``fedvlp/`` and ``tests/``.
    """

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        self.package = checkout / "fedvlp"

    @cached_property
    def sources(self) -> dict[str, str]:
        """The text of each module of the library, by its dotted name below ``fedvlp``."""
        texts: dict[str, str] = {}
        for path in sorted(self.package.rglob("*.py")):
            parts = path.relative_to(self.package).with_suffix("").parts
            texts[".".join(parts)] = path.read_text(encoding="utf-8")
        return texts

    def lines(self, *, without: tuple[str, ...] = ()) -> int:
        """Lines of the library as ``wc -l`` counts them, without some of its folders."""
        return sum(text.count("\n") for name, text in self.sources.items() if name.split(".")[0] not in without)

    @property
    def rooms(self) -> dict[str, tuple[int, int]]:
        """Lines and files of each folder of the library."""
        rooms: dict[str, tuple[int, int]] = {}
        for name, text in self.sources.items():
            room = name.split(".")[0]
            lines, files = rooms.get(room, (0, 0))
            rooms[room] = (lines + text.count("\n"), files + 1)
        return {room: size for room, size in rooms.items() if (self.package / room).is_dir()}

    @property
    def test_lines(self) -> int:
        """Lines of Python under ``tests/``."""
        return sum(path.read_text(encoding="utf-8").count("\n") for path in (self.checkout / "tests").rglob("*.py"))

    @property
    def comments(self) -> int:
        """Lines of the library that hold a comment and nothing else."""
        return sum(line.lstrip().startswith("#") for text in self.sources.values() for line in text.splitlines())

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """The modules of the library that each of them imports, anywhere in it."""
        return {name: set(self._imported(name)) for name in self.sources}

    def _imported(self, module: str) -> Iterator[str]:
        for node in ast.walk(ast.parse(self.sources[module])):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("fedvlp"):
                continue
            base = (node.module or "").removeprefix("fedvlp").removeprefix(".")
            for alias in node.names:
                candidates = (f"{base}.{alias.name}", base, f"{base}.__init__")
                imported = next((name for name in candidates if name in self.sources), None)
                if imported is not None and imported != module:
                    yield imported

    @property
    def floors(self) -> int:
        """Modules on the longest chain of imports."""
        heights: dict[str, int] = {}

        def height(module: str) -> int:
            if module not in heights:
                heights[module] = 0  # a circle, if there were one, would end here
                heights[module] = 1 + max((height(name) for name in self.imports[module]), default=0)
            return heights[module]

        return max(height(module) for module in self.sources)

    @property
    def trainer_options(self) -> dict[str, str]:
        """The options of ``Federation``, with their types as they are written."""
        for node in ast.walk(ast.parse(self.sources["federation"])):
            if isinstance(node, ast.ClassDef) and node.name == "Federation":
                constructor = next(item for item in node.body if getattr(item, "name", "") == "__init__")
                assert isinstance(constructor, ast.FunctionDef)
                arguments = [*constructor.args.args[1:], *constructor.args.kwonlyargs]
                return {each.arg: ast.unparse(each.annotation) for each in arguments if each.annotation is not None}
        raise ValueError(f"{self.package} has no class Federation.")

    @cached_property
    def bases(self) -> Mapping[str, list[str]]:
        """The classes from which each class of the methods derives, by their names."""
        bases: dict[str, list[str]] = {}
        for module, text in self.sources.items():
            if module.split(".")[0] not in ("methods", "core"):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef):
                    bases[node.name] = [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
        return bases

    def ancestors(self, name: str) -> set[str]:
        """The classes of the library between a method and ``LightningModule``."""
        found: set[str] = set()
        for base in self.bases.get(name, []):
            if base in self.bases and base != "LightningModule":
                found |= {base} | self.ancestors(base)
        return found

    @property
    def classes_below_methods(self) -> int:
        """The most classes between any method and ``LightningModule``."""
        methods = [name for name in self.bases if "FederatedModule" in self.ancestors(name)]
        return max(len(self.ancestors(name)) for name in methods)

    def table(self) -> dict[str, int]:
        """Every measure by its name."""
        groups = ("LocalTraining", "Server", "Clients", "Runtime")
        options = self.trainer_options
        num_groups = sum(any(group in kind for group in groups) for kind in options.values())
        measures = {
            "lines": self.lines(),
            "files": len(self.sources),
            f"lines outside {' and '.join(APART)}": self.lines(without=APART),
            "folders": len(self.rooms),
            "floors of modules": self.floors,
            "trainer options": len(options) - num_groups,
            "groups of trainer options": num_groups,
            "lines of tests": self.test_lines,
            "whole-line comments": self.comments,
            "classes between a method and LightningModule": self.classes_below_methods,
        }
        for room, (lines, files) in sorted(self.rooms.items()):
            measures[f"{room}: lines"] = lines
            measures[f"{room}: files"] = files
        return measures


def main() -> None:
    """Prints the table of the checkouts that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(__file__).parents[1]])
    checkouts = parser.parse_args().checkouts
    tables = [House(path).table() for path in checkouts]
    names = dict.fromkeys(name for table in tables for name in table)
    print(f"{'':48}" + "".join(f"{path.resolve().name:>12}" for path in checkouts))
    for name in names:
        print(f"{name:48}" + "".join(f"{table.get(name, ''):>12}" for table in tables))


if __name__ == "__main__":
    main()
