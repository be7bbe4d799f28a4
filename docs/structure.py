"""Measures how the package is built, and prints a Markdown table.

Usage, in the repository's folder::

    python -m docs.structure                               this tree
    git worktree add /tmp/before a103159                   an older one beside it, for comparison
    python -m docs.structure . /tmp/before

A path is a checkout of fedvlp or the folder of any package. The source is read and never imported. Rooms, imports and
lines of code are those of :mod:`docs.source_tree` and :mod:`docs.counts`; a 90th percentile is the smallest value that
nine tenths of all values do not exceed.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from docs.counts import Counts
from docs.graphs import circles, floors
from docs.source_tree import Package, read_package

ROOT = Path(__file__).resolve().parents[1]
FACADE = ("__init__", "__main__", "version", "federation")


def main(arguments: Sequence[str]) -> None:
    """Prints a column for each path; for this tree if none is given."""
    columns = {path: measures(read_package(Path(path))) for path in arguments}
    sys.stdout.write(table(columns or {"fedvlp": measures(read_package(ROOT))}))


def measures(package: Package) -> dict[str, str]:
    """Returns each measure of a package by its name, as it is printed."""
    return {**_architecture(package), **_readability([Counts(module.text) for module in package.modules.values()])}


def table(columns: dict[str, dict[str, str]]) -> str:
    """Returns a Markdown table with a row for each measure and a column for each tree."""
    names = list(next(iter(columns.values())))
    rows = [["", *columns]]
    for name in names:
        rows.append([name, *(column[name] for column in columns.values())])
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "".join(_line(cells, widths) for cells in [rows[0], rule, *rows[1:]])


def _architecture(package: Package) -> dict[str, str]:
    """What can be seen from folders and imports."""
    modules = package.modules.values()
    loose = [module for module in modules if len(module.place.parts) == 1 and module.place.stem not in FACADE]
    rooms = package.room_imports
    return {
        "files": f"{len(modules):,}",
        "loose modules": str(len(loose)),
        "rooms (folders with code, and files directly in the package)": str(len(rooms)),
        "arrows (imports between rooms)": str(sum(map(len, rooms.values()))),
        "floors (rooms on the longest path of imports)": str(floors(rooms)),
        "circles of modules": str(len(circles(package.imports))),
    }


def _readability(modules: Sequence[Counts]) -> dict[str, str]:
    """What can be seen from the lines."""
    code = sum(len(module.code) for module in modules)
    packed = sum(module.tuple_assignments for module in modules)
    comments = sum(len(module.comments) for module in modules)
    functions = sum(len(module.functions) for module in modules)
    function_lines: list[int] = []
    for module in modules:
        function_lines += module.function_lines
    return {
        "lines of a file: median / 90th percentile / largest": _spread([module.lines for module in modules]),
        "lines of code of a function: median / 90th percentile / largest": _spread(function_lines),
        "lines of code": f"{code:,}",
        "tuple assignments": str(packed),
        "tuple assignments per 100 lines of code": _ratio(100 * packed, code, 2),
        "nested comprehensions": str(sum(module.nested_comprehensions for module in modules)),
        "nested conditional expressions": str(sum(module.nested_conditionals for module in modules)),
        "whole-line comments": str(comments),
        "whole-line comments per line of code": _ratio(comments, code, 4),
        "docstring lines per line of code": _ratio(sum(len(module.docstrings) for module in modules), code, 2),
        "typed functions in %": _ratio(100 * sum(module.typed_functions for module in modules), functions, 1),
    }


def _spread(values: Sequence[int]) -> str:
    """Median, 90th percentile and largest of some numbers."""
    if not values:
        return "-"
    ordered = sorted(values)
    percentile = ordered[math.ceil(0.9 * len(ordered)) - 1]
    return f"{statistics.median(ordered):g} / {percentile} / {ordered[-1]}"


def _ratio(count: float, total: int, digits: int) -> str:
    """A share with so many digits; a dash of nothing."""
    return f"{count / total:.{digits}f}" if total else "-"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One line of the table, numbers to the right."""
    first = cells[0].ljust(widths[0])
    rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return f"| {' | '.join([first, *rest])} |\n"


if __name__ == "__main__":
    main(sys.argv[1:])
