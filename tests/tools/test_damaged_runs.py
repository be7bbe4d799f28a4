"""A damaged run is left out with a line and the others are shown; text of others never reaches the terminal raw."""

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
    """A folder with a good run."""
    run = write_run(tmp_path / "runs", [50.0, 51.0], data={"classes": list("abcde")})
    write_predictions(run, {row: {"held_out/photo": draw(30)} for row in ("zero-shot CLIP", "last round")})
    return tmp_path / "runs"


def test_a_damaged_run_is_left_out_with_a_line_and_the_others_are_shown(runs, capsys):
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


def test_the_text_of_a_summary_can_not_act_on_a_terminal(runs, capsys):
    (run,) = runs.glob("TRIP*/*")
    content = json.loads((run / "summary.json").read_text())
    content["data"]["name"] = "\x1b]0;x\x07"
    (run / "summary.json").write_text(json.dumps(content))
    assert main(["compare", str(runs)]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(("command", "content"), [("test", "data: {init_args: {}}"), ("verify", "a: [")])
def test_a_config_that_is_none_of_a_run_is_one_error(command, content, copied_run, capsys):
    (copied_run / "config.yaml").write_text(content)
    assert main([command, *([] if command == "verify" else ["--ckpt_path"]), str(copied_run)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "config.yaml" in said


def test_an_entry_whose_config_has_a_wrong_option_ends_no_other(copied_run, home, tmp_path, capsys):
    shutil.copytree(copied_run, tmp_path / "runs" / "b")
    config = yaml.safe_load((copied_run / "config.yaml").read_text())
    config["data"]["init_args"]["speed"] = 3
    (shutil.copytree(copied_run, tmp_path / "runs" / "a") / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["verify", str(tmp_path / "runs")]) == 1
    said = capsys.readouterr()
    assert f"{tmp_path / 'runs' / 'a'}: refused: --data.speed: " in said.err
    assert f"{tmp_path / 'runs' / 'b'}: verified: " in said.out
