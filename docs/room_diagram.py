"""The package's folders as a Mermaid diagram and as a table, made from imports, docstrings and what is allowed."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from docs.graphs import Graph, without_shortcuts
from docs.source_tree import Module, Package

LEFT_OUT = ("__init__", "__main__", "version")
"""Public names, the command line's start and the version: every picture would have arrows from or to them."""


def room_diagram(package: Package) -> str:
    """Returns a Mermaid flowchart of the package's top level; arrows that a longer way stands for are left out."""
    arrows = without_shortcuts(top_level(package))
    lines = ["```mermaid", "flowchart TD"]
    for room in sorted(arrows):
        lines += [f"    {room} --> {imported}" for imported in sorted(arrows[room])] or [f"    {room}"]
    return "\n".join([*lines, "```"])


def room_table(package: Package, allowed: Mapping[str, set[str]]) -> str:
    """Returns a Markdown table: each folder, what its docstring says, and what may be imported there.

    Args:
        package: whose folders are shown.
        allowed: what each place of the top level may import, by its name.
    """
    lines = ["| folder | what lives there | may import |", "|---|---|---|"]
    for room in sorted(top_level(package)):
        may_import = ", ".join(f"`{other}`" for other in sorted(allowed[room]))
        lines.append(_row(package, room, may_import or "nothing of ours"))
        lines += [_row(package, inner, "") for inner in sorted(package.room_imports) if inner.startswith(f"{room}/")]
    return "\n".join(lines)


def top_level(package: Package) -> Graph:
    """Returns the imports between places of the top level: folders with all that is in them, and single files."""
    graph: Graph = {}
    for room, imported in package.room_imports.items():
        place = _place(room)
        if place not in LEFT_OUT:
            graph.setdefault(place, set()).update({_place(other) for other in imported} - {place, *LEFT_OUT})
    return graph


def _place(room: str) -> str:
    """The folder of the top level in which a room lies."""
    return room.split("/")[0]


def _row(package: Package, room: str, allowed: str) -> str:
    """One line of the table."""
    name = f"{package.name}.{room.replace('/', '.')}"
    module = package.modules[name]
    is_folder = module.place.name == "__init__.py"
    label = f"`{room}/`" if is_folder else f"`{module.place.name}`"
    return f"| {label} | {_said_of(module)} | {allowed} |"


def _said_of(module: Module) -> str:
    """The first paragraph of a module's docstring, in one line."""
    docstring = ast.get_docstring(module.tree) or ""
    paragraph = docstring.split("\n\n")[0]
    return " ".join(paragraph.replace("``", "`").split())
