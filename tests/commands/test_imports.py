"""Commands import only the packages that they need: help and commands that only read files work without PyTorch."""

import json
import re
import subprocess
import sys
from pathlib import Path

import fedvlp
from fedvlp.results.predictions import write_predictions
from fedvlp.runs.events import append_events
from tests.helpers.predictions import draw
from tests.helpers.report_runs import write_run

HEAVY = ("pandas", "torch", "lightning", "open_clip", "torchmetrics", "matplotlib", "wandb", "scipy")
PROGRAM = """
import json, sys
from fedvlp.commands.cli import main
for words in json.loads(sys.argv[1]):
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    print(json.dumps([code, *sorted(set(json.loads(sys.argv[2])) & set(sys.modules))]))
"""
LIGHT = ("compare", "report", "status", "sweep", "data", "verify", "site", "deploy", "cost", "export", "push")


def test_help_lists_and_readers_of_runs_work_without_pytorch(tmp_path):
    folder = write_run(tmp_path, [50.0])
    write_predictions(folder, {"last round": {"held_out/photo": draw(7, classes=3)}})
    started = {"event": "fit_started", "after_round": 0, "rounds": 1, "process": 1, "machine": "m"}
    append_events(folder, [started, {"event": "fit_ended"}])
    run = str(folder)
    heads = [["--version"], ["--help"], ["status", run], *([name, "--help"] for name in LIGHT), ["data", "list"]]
    reads = [["compare", run], ["compare", run, "--intervals"], ["report", run, f"--output={run}.html"]]
    program = [sys.executable, "-c", PROGRAM, json.dumps([*heads, *reads]), json.dumps(HEAVY)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[0")]
    assert len(found) == len(heads) + len(reads), "all commands succeed"
    assert found[:3] == [[0]] * 3
    assert {package for _, *packages in found[: len(heads) + 1] for package in packages} <= {"pandas"}
    assert not {"torch", "lightning"} & set(found[-1])


def test_training_begins_without_packages_that_only_tools_use():
    for path in Path(fedvlp.__file__).parent.rglob("*.py"):
        if not {"tools", "flower"} & set(path.parts):
            imports = re.findall(r"^(?:import|from) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert not {"pandas", "onnx", "onnxruntime", "flwr"}.intersection(imports), path
