"""Imports point down from folder to folder, including imports in functions and for type checkers."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import fedvlp

PACKAGE = Path(fedvlp.__file__).parent
ALLOWED = {  # each folder, and the other folders that its files may import
    "utils": set(),
    "catalog": set(),
    "core": {"utils"},
    "clip": {"utils"},
    "results": {"core", "utils"},
    "runs": {"__init__", "core", "utils"},
    "data": {"catalog", "core", "utils"},
    "methods": {"clip", "core", "utils"},
    "training": {"core", "runs", "utils"},
    "callbacks": {"core", "results", "runs", "training", "utils"},
    "federation": {"callbacks", "core", "data", "results", "runs", "training", "utils"},
    "commands": {"__init__", "clip", "core", "data", "federation", "methods", "results", "runs", "training"}
    | {"utils"},
    "testing": {"callbacks", "commands", "core", "data", "federation", "runs", "training", "utils"},
    "sites": {"commands", "core", "data", "federation", "methods", "runs", "training", "utils"},
    "tools": {"__init__", "catalog", "clip", "commands", "core", "data", "federation", "methods", "results"}
    | {"runs", "testing", "training", "utils"},
}
ANYWHERE = {"version"}
ROOT = {"__init__", "__main__", "federation", "version"}
FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(path):
    """Build the dotted name of a file's module below the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_name(path): path for path in FILES}


@cache
def imports(path):
    """List every module of the package that a file imports."""
    return list(find_imports(path))


def find_imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "fedvlp":
                    yield alias.name.removeprefix("fedvlp").removeprefix(".") or "__init__"
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert not any(alias.name == "*" for alias in node.names), f"{path} has a star import"
            if node.module == "fedvlp":
                yield "__init__"
            elif node.module and node.module.startswith("fedvlp."):
                found = node.module.removeprefix("fedvlp.")
                inner = [f"{found}.{alias.name}" for alias in node.names]
                yield from [name if name in MODULES else found for name in inner]


def top_folder(module):
    return module.split(".")[0]


def test_imports_point_down():
    for module, path in MODULES.items():
        folder = top_folder(module)
        if folder in ("__init__", "__main__"):  # the public names, and the command line
            continue
        assert folder in {*ALLOWED, *ANYWHERE}, f"{folder} is a new folder: add the folders that it may import"
        allowed = set() if folder in ANYWHERE else ALLOWED[folder] | ANYWHERE | {folder}
        for imported in imports(path):
            assert top_folder(imported) in allowed, f"{module} imports {imported}"


def test_the_top_folder_contains_only_the_facade():
    assert {path.stem for path in PACKAGE.glob("*.py")} == ROOT
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - {"configs"} == set(ALLOWED) - {"federation"}


def test_every_folder_has_a_documented_init():
    for path in FILES:
        if path.name == "__init__.py":
            assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path} has no docstring"
        assert (path.parent / "__init__.py").exists(), f"{path.parent} is a folder without __init__.py"


def sort_modules(graph):
    """Sort a graph topologically, or raise CycleError with the cycle."""
    return list(TopologicalSorter(graph).static_order())


def test_folders_have_no_circular_imports():
    """In each folder, its subfolders and its files are the nodes of the graph."""
    for parent in {path.parent for path in FILES}:
        prefix = [*parent.relative_to(PACKAGE).parts]
        graph = {}
        for module, path in MODULES.items():
            parts = module.split(".")
            if parts[: len(prefix)] != prefix or path.name == "__init__.py":
                continue
            node = parts[len(prefix)]
            for imported in imports(path):
                other = imported.split(".")
                if other[: len(prefix)] == prefix and len(other) > len(prefix) and other[len(prefix)] != node:
                    graph.setdefault(node, set()).add(other[len(prefix)])
        sort_modules(graph)


def test_the_training_loop_does_not_mention_methods():
    loop = [path for path in FILES if top_folder(module_name(path)) in ("federation", "training", "callbacks")]
    methods = [path for path in FILES if top_folder(module_name(path)) == "methods"]
    names = {path.stem.lower() for path in methods if path.stem != "__init__"} - {"parts", "options", "losses"}
    for name in ("trip", "plan", "diprompt", "adapt", "promptfl"):
        assert name in names
        assert not [path for path in loop if name in path.read_text(encoding="utf-8").lower().split()]


def test_only_the_flower_folder_imports_flower():
    """An installation without the extra imports none of its modules."""
    users = {}
    for module, path in MODULES.items():
        flower = {name for name in imports(path) if name.startswith("sites.flower")}
        if flower and not module.startswith("sites.flower"):
            users[module] = flower
    # The command imports the check only if Flower is installed.
    assert users == {"sites.commands": {"sites.flower.check", "sites.flower.node"}}
