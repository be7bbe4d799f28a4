"""What a command does not need, it does not import: its help and what reads files alone answer without PyTorch."""

import subprocess
import sys

import pytest

from fedvlp.results.predictions import write_predictions
from fedvlp.runs.events import append_events
from tests.helpers.predictions import draw
from tests.helpers.report_runs import write_run

HEAVY = ("torch", "lightning", "open_clip", "torchmetrics", "matplotlib", "wandb", "scipy")
PROGRAM = """
import sys
from fedvlp.commands.cli import main
try:
    code = main(sys.argv[2:])
except SystemExit as end:
    code = end.code
print(code, *(set(sys.argv[1].split()) & set(sys.modules)))
"""
LIGHT = ("compare", "report", "status", "sweep", "data", "verify", "site", "deploy", "cost")
FORMS = [[name, "--help"] for name in (*LIGHT, "export", "push")]


def imported(names, words):
    """Which of some packages a command has imported at its end, which is a success."""
    command = [sys.executable, "-c", PROGRAM, " ".join(names), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, *found = done.stdout.splitlines()[-1].split()
    assert code == "0"
    return set(found)


@pytest.mark.parametrize("words", [*FORMS, ["data", "list"]], ids=" ".join)
def test_help_and_lists_do_without_pytorch(words):
    assert imported(HEAVY, words) == set()


def test_runs_are_read_without_pytorch(tmp_path):
    folder = write_run(tmp_path, [50.0])
    write_predictions(folder, {"last round": {"held_out/photo": draw(7, classes=3)}})
    started = {"event": "fit_started", "after_round": 0, "rounds": 1, "process": 1, "machine": "m"}
    append_events(folder, [started, {"event": "fit_ended"}])
    run = str(folder)
    assert imported(("pandas", *HEAVY), ["status", run]) == set()
    assert imported(HEAVY, ["compare", run]) == set()
    assert imported(("torch", "lightning"), ["compare", run, "--intervals"]) == set()
    assert imported(("torch", "lightning"), ["report", run, f"--output={run}.html"]) == set()


def test_training_begins_without_tables_and_what_only_tools_use():
    assert imported(("pandas", "onnx", "onnxruntime", "flwr"), ["fit", "--help"]) == set()
