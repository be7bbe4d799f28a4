"""A damaged run is left out with a line, whatever is wrong with it, and the others are shown."""

from __future__ import annotations

import json
import shutil
from functools import partial

import pytest
import torch
import yaml

from fedvlp.commands.cli import main
from fedvlp.results.predictions import write_predictions
from fedvlp.runs.events import append_events
from fedvlp.utils.tensor_files import read_tensors, write_tensors
from tests.helpers.predictions import draw
from tests.helpers.report_runs import write_run

LONG = "a" * 10**6
ROW = "last round (2)"


def summary(path, value, run):
    """Sets a value of a run's summary, named by what leads to it."""
    content = json.loads((run / "summary.json").read_text())
    place = content
    for name in path[:-1]:
        place = place.setdefault(name, {})
    place[path[-1]] = value
    (run / "summary.json").write_text(json.dumps(content))


def text(name, content, run):
    """Writes a file of a run."""
    (run / name).write_text(content)


def tensor(name, change, run):
    """Changes a tensor of a run's predictions."""
    path = run / "predictions.safetensors"
    tensors, header = read_tensors(path)
    key = f"last round/held_out/photo/{name}"
    write_tensors(path, tensors | {key: change(tensors[key])}, header)


def metrics(scores):
    return partial(summary, ["metrics"], {"last round": {"held_out": scores}})


def option(value):
    return partial(summary, ["model", "init_args", "prompt_length"], value)


EVERYWHERE = {
    "no JSON": partial(text, "summary.json", "{"),
    "a list": partial(text, "summary.json", "[]"),
    "brackets": partial(text, "summary.json", "[" * 10**5),
    "values in values": option(json.loads("[" * 99 + "]" * 99)),
    "accuracy of 1e308": partial(summary, ["accuracy", ROW, "held_out/photo"], 1e308),
    "accuracy of NaN": partial(summary, ["accuracy", ROW, "held_out"], float("nan")),
    "accuracy below 0": partial(summary, ["accuracy", ROW, "held_out"], -1.0),
    "row of a string": partial(summary, ["accuracy", ROW], "high"),
    "no accuracy": partial(summary, ["accuracy"], None),
    "metrics of 1e308": metrics({"macro_f1": 1e308}),
    "metrics of a string": metrics({"macro_f1": "high"}),
    "worst domain of a string": metrics({"worst_domain": "photo"}),
    "long label": option(LONG),
    "long class": partial(summary, ["data", "classes"], ["dog", LONG]),
    "long name of an option": partial(summary, ["model", "init_args", LONG], 1),
    "option of 1e400": option(10**400),
    "method of a number": partial(summary, ["model", "class_path"], 3),
    "classes of a number": partial(summary, ["data", "classes"], 3),
    "fraction of a string": partial(summary, ["data", "validation_fraction"], "half"),
    "targets of a number": partial(summary, ["data", "targets"], [3]),
    "images of no class of a string": partial(summary, ["data", "out_of_distribution"], "noise"),
    "seed of a string": partial(summary, ["training", "seed"], "first"),
    "add-ons of a string": partial(summary, ["training", "add_ons"], ["FedProx"]),
    "optimizer of a number": partial(summary, ["optimizer"], 3),
    "one count": partial(summary, ["communication_per_client_and_round"], {"upload_bytes": 3}),
    "seconds of nothing": partial(summary, ["seconds"], None),
}
HISTORY = {
    "rounds of words": partial(text, "metrics.csv", "round,held_out\n1,many\n"),
    "rounds without numbers": partial(text, "metrics.csv", "held_out\n1\n"),
}
PREDICTIONS = {
    "label of 10^6": partial(tensor, "labels", lambda labels: torch.full_like(labels, 10**6)),
    "prediction of 10^6": partial(tensor, "predicted", lambda predicted: torch.full_like(predicted, 10**6)),
    "negative prediction": partial(tensor, "predicted", lambda predicted: -predicted - 1),
    "labels between classes": partial(tensor, "labels", lambda labels: labels / 3),
    "other images": partial(tensor, "predicted", lambda predicted: predicted[:, 1:]),
    "no tensors": partial(text, "predictions.safetensors", "0"),
}
CONFIG = {
    "config of no YAML": partial(text, "config.yaml", "a: ["),
    "config of a list": partial(text, "config.yaml", "[1]"),
    "config of brackets": partial(text, "config.yaml", "[" * 3000),
    "config of another place": lambda run: _link(run / "config.yaml", run.parents[2] / "secret"),
}
SHOWN = {
    "no mean": partial(summary, ["accuracy", ROW], {"held_out/photo": 40.0}),
    "empty row": partial(summary, ["accuracy", ROW], {}),
    "no fraction": partial(summary, ["data", "validation_fraction"], None),
    "no row": partial(summary, ["accuracy"], {}),
    "round of 1e308": partial(text, "metrics.csv", "round,held_out\n1,1e308\n2,50\n"),
    "surrogates": partial(summary, ["data", "classes"], ["\udcff", *"bcde"]),
    "surrogate in a label": option("\ud800"),
    "what a terminal acts on": partial(summary, ["data", "name"], "\x1b]0;x\x07"),
    "kind of another protocol": partial(summary, ["data", "kind"], "base-to-new"),
    "kind of a list": partial(summary, ["data", "kind"], ["base-to-new"]),
    "learning rate of a string": partial(summary, ["optimizer", "lr"], "high"),
    "templates of a string": lambda run: _templates(run, "x"),
    "no data": partial(summary, ["data"], {}),
}
COMMANDS = {
    "compare": (["compare", "RUNS", "--output", "PAGE"], {}),
    "intervals": (["compare", "RUNS", "--oracle", "--intervals", "--output", "PAGE"], HISTORY | PREDICTIONS),
    "markdown": (["compare", "RUNS", "--format=markdown", "--output", "PAGE"], {}),
    "latex": (["compare", "RUNS", "--format=latex", "--output", "PAGE"], {}),
    "report": (["report", "RUNS", "-o", "PAGE"], HISTORY | PREDICTIONS | CONFIG),
}


def _link(path, target):
    target.write_text("password: hush")
    path.unlink()
    path.symlink_to(target)


def _templates(run, count):
    summary(["model"], {"class_path": "ZeroShotCLIP", "init_args": {"templates": count}, "clip_fingerprint": "0"}, run)


@pytest.fixture
def runs(tmp_path):
    """A good run, and the folder in which those are that are to be damaged."""
    run = write_run(tmp_path / "runs", [50.0, 51.0], data={"classes": list("abcde")})
    write_predictions(run, {row: {"held_out/photo": draw(30)} for row in ("zero-shot CLIP", "last round")})
    return tmp_path / "runs"


def damage(runs, damages):
    """Copies the good run for each damage, and returns the folders."""
    (good,) = runs.glob("TRIP*/*")
    folders = {}
    for seed, (name, change) in enumerate(damages.items(), start=1):
        folders[name] = shutil.copytree(good, runs / name / "run")
        summary(["training", "seed"], seed, folders[name])
        change(folders[name])
    return folders


@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_run_is_left_out_with_a_line_and_the_others_are_shown(command, runs, tmp_path, capsys):
    words, of_command = COMMANDS[command]
    folders = damage(runs, EVERYWHERE | of_command)
    page = tmp_path / "page"
    assert main([{"RUNS": str(runs), "PAGE": str(page)}.get(word, word) for word in words]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(folders)
    for name, folder in folders.items():
        (line,) = [line for line in lines if f"{folder}" in line]
        assert len(line) < 1000, name
    shown = page.read_text(encoding="utf-8")
    assert "trip" in shown
    assert "hush" not in shown + "".join(lines)


@pytest.mark.parametrize("command", ["intervals", "markdown", "report"])
def test_what_is_odd_is_shown_beside_the_others(command, runs, tmp_path, capsys):
    damage(runs, SHOWN)
    page = tmp_path / "page"
    words = [{"RUNS": str(runs), "PAGE": str(page)}.get(word, word) for word in COMMANDS[command][0]]
    assert main(words) == 0
    assert capsys.readouterr().err == ""
    shown = page.read_text(encoding="utf-8")
    assert "trip" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    "content",
    ["[]", '{"runs": 3}', '{"runs": {"a": ["done"]}}', '{"runs": {"a": 1e400}}', "[" * 10**5, f'["{LONG}"]'],
    ids=range(6),
)
def test_the_state_of_a_sweep_and_captions_that_can_not_be_read_are_a_line(runs, tmp_path, capsys, content):
    (run,) = runs.glob("TRIP*/*")
    (run / "explanations").mkdir()
    for path in (runs / "sweep.json", run / "explanations" / "captions.json"):
        path.write_text(content)
    assert main(["report", str(runs), "-o", str(tmp_path / "page.html")]) == 1
    assert f"{runs / 'sweep.json'} can't be read (" in capsys.readouterr().err
    page = (tmp_path / "page.html").read_text()
    assert "trip" in page
    assert content == "[]" or "captions.json can&#39;t be read (" in page


def test_a_picture_of_another_place_is_not_shown(runs, tmp_path):
    (run,) = runs.glob("TRIP*/*")
    entry = {"file": "map.png", "title": "Map", "caption": "Where it looks.", "alt": "A dark square."}
    (run / "explanations").mkdir()
    (run / "explanations" / "captions.json").write_text(json.dumps([entry]))
    (tmp_path / "secret").write_text("hush")
    (run / "explanations" / "map.png").symlink_to(tmp_path / "secret")
    assert main(["report", str(runs), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "map.png is a link out of" in page
    assert "aHVzaA" not in page  # the same in base64


STARTED = {"event": "fit_started", "after_round": 0, "rounds": 5, "process": 1, "machine": "here"}
ENDED = {"event": "round_ended", "round": 1, "seconds": 2.5, "held_out": 50.0}
ODD = {
    "rounds of words": [STARTED | {"rounds": "many"}],
    "rounds of 1e400": [STARTED | {"rounds": 10**400}],
    "no rounds": [{"event": "fit_started"}],
    "no start": [ENDED],
    "seconds of a string": [STARTED, ENDED | {"seconds": "long"}],
    "accuracy of a list": [STARTED, ENDED | {"held_out": [1]}],
    "checkpoint of a number": [STARTED, {"event": "checkpoint", "file": 3}],
    "error of a list": [STARTED, {"event": "fit_failed", "after_round": 0, "error": ["x"], "message": "y"}],
}


@pytest.mark.parametrize("name", ODD)
def test_events_that_no_run_writes_are_one_error(name, tmp_path, capsys):
    append_events(tmp_path, ODD[name])
    for form in ("text", "json"):
        assert main(["status", str(tmp_path), "--format", form]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"fedvlp: error: {tmp_path / 'events.jsonl'} has no events of a run")


def test_lines_that_are_no_events_are_passed_over(tmp_path, capsys):
    append_events(tmp_path, [STARTED])
    start = (tmp_path / "events.jsonl").read_text()
    odd = [
        "3",
        "[]",
        "{}",
        '{"event": ["a"], "time": "2026-01-01"}',
        '{"event": "round_ended", "time": 3}',
        "[" * 10**5,
    ]
    (tmp_path / "events.jsonl").write_text("\n".join([*odd, start]))
    append_events(tmp_path, [{"event": "client_left_out"}, ENDED])
    assert main(["status", str(tmp_path)]) == 1
    assert "rounds     1 of 5" in capsys.readouterr().out


CONFIGS = {
    "no class": "data: {init_args: {}}",
    "list": "data: []",
    "options of a list": "data: {class_path: DomainFolders, init_args: [a]}",
    "trainer of a string": "trainer: fast",
    "no mapping": "[]",
    "no YAML": "a: [",
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("command", ["test", "validate", "explain", "audit", "verify"])
def test_a_config_that_is_none_of_a_run_is_one_error(command, name, trip_run, capsys):
    (trip_run / "config.yaml").write_text(CONFIGS[name])
    assert main([command, *([] if command == "verify" else ["--ckpt_path"]), str(trip_run)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "config.yaml" in said


def test_an_entry_whose_config_has_a_wrong_option_ends_no_other(trip_run, home, tmp_path, capsys):
    shutil.copytree(trip_run, tmp_path / "runs" / "b")
    config = yaml.safe_load((trip_run / "config.yaml").read_text())
    config["data"]["init_args"]["speed"] = 3
    (shutil.copytree(trip_run, tmp_path / "runs" / "a") / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["verify", str(tmp_path / "runs")]) == 1
    said = capsys.readouterr()
    assert f"{tmp_path / 'runs' / 'a'}: refused: Its config can't be used: " in said.err
    assert f"{tmp_path / 'runs' / 'b'}: verified: " in said.out
