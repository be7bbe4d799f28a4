"""The size of the library, and the dependencies between its modules.

``python -m benchmarks.house [CHECKOUT ...]`` prints a column of measures for each checkout.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

APART = ("tools", "sites")
"""Folders that no other part of the library depends on."""


class House:
    """Source of the library in a checkout, which is read but never imported.

    Args:
        checkout: folder that holds ``fedvlp/`` and ``tests/``.
    """

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        self.package = checkout / "fedvlp"

    @cached_property
    def sources(self) -> dict[str, str]:
        """Source text of each module, by dotted name below ``fedvlp``."""
        texts: dict[str, str] = {}
        for path in sorted(self.package.rglob("*.py")):
            parts = path.relative_to(self.package).with_suffix("").parts
            texts[".".join(parts)] = path.read_text(encoding="utf-8")
        return texts

    def lines(self, *, without: tuple[str, ...] = ()) -> int:
        """Count the lines of the library like ``wc -l``, optionally without some folders."""
        return sum(text.count("\n") for name, text in self.sources.items() if name.split(".")[0] not in without)

    @property
    def test_lines(self) -> int:
        """Lines of Python under ``tests/``."""
        return sum(path.read_text(encoding="utf-8").count("\n") for path in (self.checkout / "tests").rglob("*.py"))

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Modules of the library that each module imports, anywhere in its code."""
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
        """Number of modules on the longest chain of imports."""
        heights: dict[str, int] = {}

        def height(module: str) -> int:
            if module not in heights:
                heights[module] = 0  # a circular import would end here
                heights[module] = 1 + max((height(name) for name in self.imports[module]), default=0)
            return heights[module]

        return max(height(module) for module in self.sources)

    @property
    def config_lines(self) -> int:
        """Lines of the methods' configs."""
        files = (self.checkout / "configs" / "methods").glob("*.yaml")
        return sum(path.read_text(encoding="utf-8").count("\n") for path in files)

    @property
    def functions_named_once(self) -> float:
        """Private functions that are mentioned only once, in percent of all functions."""
        names: Counter[str] = Counter()
        private: set[str] = set()
        functions = 0
        for text in self.sources.values():
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Name):
                    names[node.id] += 1
                elif isinstance(node, ast.Attribute):
                    names[node.attr] += 1
                elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    functions += 1
                    if node.name.startswith("_") and not node.name.startswith("__"):
                        private.add(node.name)
        return 100 * sum(names[name] == 1 for name in private) / functions

    @property
    def guards(self) -> float:
        """``except`` clauses and calls of ``check_...`` per 1,000 lines of statements."""
        guards = 0
        code = 0
        for text in self.sources.values():
            tree = ast.parse(text)
            code += len(_code_lines(tree))
            for node in ast.walk(tree):
                if isinstance(node, ast.Call):
                    name = ast.unparse(node.func).rpartition(".")[2]
                    guards += name.lstrip("_").startswith(("check_", "checked"))
                guards += isinstance(node, ast.ExceptHandler)
        return 1000 * guards / code

    def table(self) -> dict[str, float]:
        """All measures by name."""
        return {
            "lines": self.lines(),
            f"lines outside {' and '.join(APART)}": self.lines(without=APART),
            "files": len(self.sources),
            "modules on the longest chain of imports": self.floors,
            "lines of tests": self.test_lines,
            "lines of configs/methods": self.config_lines,
            "private functions named once, % of functions": self.functions_named_once,
            "except and check_*, per 1,000 lines of code": self.guards,
        }


def _code_lines(tree: ast.Module) -> set[int]:
    """Count the lines of statements, without docstrings."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and not is_docstring:
            # A compound statement counts by its header; the statements in its body count separately.
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno
            lines |= set(range(node.lineno, (end or node.lineno) + 1))
    return lines


def main() -> None:
    """Print the table of the given checkouts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(__file__).parents[1]])
    checkouts = parser.parse_args().checkouts
    tables = [House(path).table() for path in checkouts]
    names = dict.fromkeys(name for table in tables for name in table)
    print(f"{'':48}" + "".join(f"{path.resolve().name:>12}" for path in checkouts))
    for name in names:
        numbers = [f"{table[name]:.1f}" if isinstance(table[name], float) else str(table[name]) for table in tables]
        print(f"{name:48}" + "".join(f"{number:>12}" for number in numbers))


if __name__ == "__main__":
    main()
