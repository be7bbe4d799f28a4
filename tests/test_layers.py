"""Imports point down: what a file of one layer may import of ours."""

import ast
from pathlib import Path

import pytest

import fedvlp

PACKAGE = Path(fedvlp.__file__).parent
BASE = {"errors", "version"}
ALLOWED = {
    "errors": set(),
    "version": set(),
    "state": set(),
    "diagnosis": set(),
    "heap": set(),
    "strategies": {"errors", "state", "strategies"},
    "protocols": {"state"},
    "plain": set(),
    "schedules": {"errors"},
    "module": BASE | {"diagnosis", "plain", "state", "strategies", "protocols"},
    "phases": {"errors", "module", "state"},
    "optimizer_state": {"errors", "state"},
    "cost": {"module", "phases", "state"},
    "clip": {"errors", "clip"},
    "ops": {"errors", "ops"},
    "seeding": {"state"},
    "tensor_files": {"errors", "state"},
    "client_states": {"errors", "state", "tensor_files"},
    "checkpoint": {"client_states", "errors", "state", "tensor_files"},
    "state_buffers": {"state"},
    "gathering": {"client_states", "state"},
    "optimizers": {"module"},
    "attachment": {"module", "protocols", "state"},
    "evaluation": {"errors", "module", "protocols", "state"},
    "local_training": {"errors", "optimizer_state", "optimizers", "protocols", "schedules", "state"},
    "run_folder": {"checkpoint", "errors", "module", "protocols", "schedules", "state"},
    "prediction": {"module", "data"},
    "inspection": {"diagnosis", "errors", "module", "protocols", "run_folder"},
    "data_sets": {"data_sets"},
    "data": {"errors", "state", "data", "data_sets"},
    "methods": {"clip", "diagnosis", "errors", "methods", "module", "ops", "protocols", "state", "strategies"},
    "report": {"report", "results", "version"},
    "results": {"errors", "results"},
    "callbacks": BASE | {"callbacks", "checkpoint", "cost", "local_training", "module", "report", "results", "state"},
    "shared_optimizer": {"module", "optimizer_state", "state"},
    "stacked_tensors": {"module", "state"},
    "batched_training": {"errors", "module", "optimizer_state", "protocols", "shared_optimizer", "stacked_tensors"}
    | {"state"},
    "rounds": {"batched_training", "checkpoint", "client_states", "errors", "gathering", "local_training", "module"}
    | {"optimizers", "protocols", "seeding", "state", "state_buffers", "tensor_files"},
    "federation": BASE
    | {"attachment", "batched_training", "callbacks", "checkpoint", "client_states", "diagnosis", "evaluation"}
    | {"heap", "inspection"}
    | {"local_training", "module"}
    | {"phases", "prediction", "protocols", "rounds", "run_folder", "schedules", "state"},
    "config_files": {"errors"},
    "explain": {"clip", "data", "errors", "explain", "module", "protocols", "report", "state"},
    "sweep": {"callbacks", "config_files", "errors", "report", "sweep"},
}
TOP = {
    "cli",
    "commands",
    "compare_command",
    "cost_command",
    "data_command",
    "explain_command",
    "parser",
    "report_command",
    "sweep_command",
    "__init__",
    "__main__",
}


def imports(path):
    """Names every module of ours that a file imports when it runs, blocks for type checkers left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "fedvlp")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert not any(alias.name == "*" for alias in node.names), f"{path} has a star import"
            if node.module and node.module.split(".")[0] == "fedvlp":
                yield node.module


def layer_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(path for path in PACKAGE.rglob("*.py") if layer_of(path) not in TOP)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_down(path):
    layer = layer_of(path)
    assert layer in ALLOWED, f"{layer} is a new layer: say here what it may import"
    for name in imports(path):
        imported = name.split(".")[1] if "." in name else "__init__"
        assert imported in ALLOWED[layer], f"{path.name} ({layer}) imports {name}"


def test_the_loop_names_no_method_and_methods_name_no_loop():
    loop = [
        path
        for path in FILES
        if layer_of(path) in ("federation", "rounds", "local_training", "batched_training", "evaluation", "callbacks")
    ]
    methods = [path.stem for path in FILES if layer_of(path) == "methods" and path.stem != "__init__"]
    for path in loop:
        assert not [name for name in imports(path) if ".methods" in name or ".clip" in name]
        assert not [method for method in methods if method.lower() in path.read_text().lower().split()]
    for path in FILES:
        if layer_of(path) == "methods":
            assert not [name for name in imports(path) if "federation" in name or "callbacks" in name]
