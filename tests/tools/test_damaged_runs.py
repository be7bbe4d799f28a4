"""Damaged runs are skipped with one line each, and text from files cannot control the terminal."""

import json
import shutil

import pytest
import yaml

from fedvlp.commands.cli import main
from fedvlp.results.predictions import write_predictions
from tests.helpers.predictions import draw
from tests.helpers.report_runs import write_run

SUMMARY = {"no JSON": "{", "a list": "[]", "brackets": "[" * 10**5, "no method": "{}"}


@pytest.fixture
def runs(tmp_path):
    """Write a folder with one good run."""
    run = write_run(tmp_path / "runs", [50.0, 51.0], data={"classes": list("abcde")})
    write_predictions(run, {row: {"held_out/photo": draw(30)} for row in ("zero-shot CLIP", "last round")})
    return tmp_path / "runs"


def test_a_damaged_run_is_skipped_with_one_line_and_the_others_are_shown(runs, capsys):
    (good,) = runs.glob("TRIP*/*")
    for name, content in SUMMARY.items():
        (shutil.copytree(good, runs / name / "run") / "summary.json").write_text(content)
    (shutil.copytree(good, runs / "predictions" / "run") / "predictions.safetensors").write_text("a: [")
    assert main(["compare", str(runs), "--oracle", "--intervals"]) == 1
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert len(lines) == len(SUMMARY) + 1
    for name in (*SUMMARY, "predictions"):
        (line,) = [line for line in lines if f"{runs / name}" in line]
        assert len(line) < 1000, name
    assert "trip" in printed.out


def test_text_from_a_summary_cannot_control_the_terminal(runs, capsys):
    (run,) = runs.glob("TRIP*/*")
    content = json.loads((run / "summary.json").read_text())
    content["data"]["name"] = "\x1b]0;x\x07"
    (run / "summary.json").write_text(json.dumps(content))
    assert main(["compare", str(runs)]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(("command", "content"), [("test", "data: {init_args: {}}"), ("verify", "a: [")])
def test_a_foreign_config_is_one_error(command, content, copied_run, capsys):
    (copied_run / "config.yaml").write_text(content)
    assert main([command, *([] if command == "verify" else ["--ckpt_path"]), str(copied_run)]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "config.yaml" in errors


def test_a_wrong_option_in_one_entry_does_not_affect_others(copied_run, home, tmp_path, capsys):
    shutil.copytree(copied_run, tmp_path / "runs" / "b")
    config = yaml.safe_load((copied_run / "config.yaml").read_text())
    config["data"]["init_args"]["speed"] = 3
    (shutil.copytree(copied_run, tmp_path / "runs" / "a") / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["verify", str(tmp_path / "runs")]) == 1
    printed = capsys.readouterr()
    assert f"{tmp_path / 'runs' / 'a'}: refused: --data.speed: " in printed.err
    assert f"{tmp_path / 'runs' / 'b'}: verified: " in printed.out
