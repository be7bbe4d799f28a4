"""``fedvlp status`` of running, finished, failed and killed runs."""

import json
import os
import platform
import sys

import pytest

from fedvlp.callbacks import Checkpoints, EventLog
from fedvlp.commands.cli import main
from fedvlp.runs.events import append_events
from fedvlp.runs.run_folder import claimed
from tests.helpers.toy_federation import Linear, Points, federation

STARTED = {"event": "fit_started", "after_round": 0, "rounds": 5, "process": os.getpid(), "machine": platform.node()}


def ended(round, **values):
    return {"event": "round_ended", "round": round, "seconds": 2.5, **values}


@pytest.fixture
def run(tmp_path):
    """Write the first events of a run."""
    folder = tmp_path / "runs" / "name" / "time"
    folder.mkdir(parents=True)
    left_out = {"event": "client_left_out", "round": 2, "phase": "train", "client": 3, "name": "a\x1b[31m"}
    append_events(
        folder,
        [
            STARTED,
            ended(1, validation=40.0),
            {"event": "checkpoint", "round": 1, "file": "round-00001.safetensors"},
            {**left_out, "reason": "raised RuntimeError: no"},
            {"event": "client_retried", "round": 2, "phase": "train", "client": 4, "name": "b", "reason": "x"},
            ended(2, validation=61.25, held_out=55.5),
        ],
    )
    return folder


def run_status(capsys, *arguments):
    code = main(["status", *map(str, arguments)])
    return code, capsys.readouterr().out


def test_status_of_a_running_run(run, tmp_path, capsys):
    with claimed(run):
        code, text = run_status(capsys, tmp_path / "runs")
    assert code == 0
    lines = dict(line.split(None, 1) for line in text.splitlines())
    assert lines["run"] == str(run)
    assert lines["state"].startswith(f"running (process {os.getpid()} on {platform.node()}), last event ")
    assert lines["rounds"] == "2 of 5, the last in 2.5 s, about 8 s left"
    assert lines["accuracy"] == "validation 61.2 %, held-out 55.5 %"
    assert lines["clients"] == "skipped 1 times, retried 1 times"
    assert lines["skipped"] == "round 2, client a\\x1b[31m: raised RuntimeError: no"
    assert lines["checkpoint"] == str(run / "checkpoints" / "round-00001.safetensors")
    assert "resume" not in lines


def test_status_of_a_failed_run(run, capsys):
    append_events(run, [{"event": "fit_failed", "after_round": 2, "error": "KeyboardInterrupt", "message": ""}])
    code, text = run_status(capsys, run)
    assert code == 1
    assert f"resume     fedvlp fit --config {run / 'config.yaml'} --ckpt_path {run}\n" in text
    found = json.loads(run_status(capsys, run, "--format", "json")[1])
    assert (found["stage"], found["error"], found["round"]) == ("failed", "KeyboardInterrupt", 2)
    append_events(run, [{**STARTED, "after_round": 2}])
    with claimed(run):
        found = json.loads(run_status(capsys, run, "--format", "json")[1])
    assert (found["stage"], found["error"], found["begun"]) == ("running", "", 2)
    assert found["last_round"]["held_out"] == 55.5
    assert found["seconds_silent"] >= 0


def test_status_of_a_finished_run(tmp_path, capsys):
    checkpoints = Checkpoints()
    options = {"default_callbacks": False, "callbacks": [checkpoints, EventLog()]}
    made = federation(tmp_path, name="run", **options)
    made.fit(Linear(), Points())
    code, text = run_status(capsys, tmp_path)
    assert code == 0
    assert "state      finished\n" in text
    assert "rounds     3 of 3, the last in " in text
    assert f"checkpoint {made.folder}/checkpoints/round-00003.safetensors\n" in text


def test_status_of_each_run_of_a_sweep(run, tmp_path, capsys):
    sweep = tmp_path / "sweep"
    for name, events in {"trip-1/ink-0": [STARTED, ended(5, held_out=50.0)], "trip-1/ink-1": [STARTED]}.items():
        for time in ("2026-01-01_10-00-00", "2026-01-01_11-00-00"):
            (sweep / name / time).mkdir(parents=True)
            append_events(sweep / name / time, events)
    append_events(sweep / "trip-1/ink-0/2026-01-01_11-00-00", [{"event": "fit_ended", "after_round": 5}])
    (sweep / "sweep.json").write_text("{}")
    code, text = run_status(capsys, sweep)
    assert code == 1
    rows = [line.split(None, 1) for line in text.splitlines()[2:]]
    assert [name.removeprefix(f"{sweep}/trip-1/") for name, _ in rows] == [
        "ink-0/2026-01-01_11-00-00",
        "ink-1/2026-01-01_11-00-00",
    ]
    assert "finished" in rows[0][1]
    assert "5 of 5" in rows[0][1]
    assert "held-out 50.0 %" in rows[0][1]
    assert rows[1][1].startswith("dead: its process was killed")
    found = json.loads(run_status(capsys, sweep, "--format", "json")[1])
    assert [status["stage"] for status in found] == ["finished", "dead"]


def test_a_closed_pipe_ends_the_command_quietly_and_a_folder_without_run_is_rejected(
    run, tmp_path, capsys, monkeypatch
):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["status", str(run)]) == 141
        monkeypatch.undo()
    assert capsys.readouterr().err == ""
    (tmp_path / "none").mkdir()
    assert main(["status", str(tmp_path / "none")]) == 1
    assert f"No run at {tmp_path / 'none'}" in capsys.readouterr().err
