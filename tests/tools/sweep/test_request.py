from __future__ import annotations

import pytest

from fedvlp.tools.sweep import SweepMethod, make_sweep, read_sweep
from fedvlp.utils.errors import UserError


def test_a_sweep_of_names():
    sweep = make_sweep(
        {
            "config": ["data/folders"],
            "models": ["trip", "methods/plan", {"label": "short", "config": "trip", "arguments": ["--a=1"]}],
            "held_out": ["ink", "photo"],
            "seeds": [3, 1, 3],
            "arguments": ["--b=1"],
        },
        ["--b=2", "--config", "loggers/wandb"],
    )
    assert sweep.methods == (
        SweepMethod("trip", "methods/trip"),
        SweepMethod("plan", "methods/plan"),
        SweepMethod("short", "methods/trip", ("--a=1",)),
    )
    assert (sweep.held_out, sweep.seeds) == (("ink", "photo"), (3, 1))
    assert sweep.choices(sweep.methods[2]) == (
        *("--config=methods/trip", "--config=data/folders"),
        *("--b=1", "--b=2", "--config=loggers/wandb", "--a=1"),
    )


def test_what_is_not_said():
    sweep = make_sweep({"models": "trip"})
    assert (sweep.configs, sweep.held_out, sweep.seeds, sweep.arguments) == ((), "all", (0,), ())


def test_a_config_of_ones_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("model: {class_path: TRIP}\n")
    assert make_sweep({"models": [str(path)]}).methods == (SweepMethod("mine", str(path)),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "at least one method"),
        ({"models": ["trip", "trip"]}, "2 models are called 'trip'"),
        ({"models": ["trib"]}, "Did you mean 'trip'"),
        ({"models": ["folders"]}, "no model.class_path"),
        ({"models": [{"config": "trip", "args": []}]}, "label, config and arguments"),
        ({"models": ["trip"], "config": ["data/folder"]}, "Did you mean 'data/folders'"),
        ({"models": ["trip"], "config": ["plan"]}, "Put it under models"),
        ({"models": ["trip"], "arguments": ["--model=PLAN"]}, "Use --models"),
        ({"models": ["trip"], "seeds": ["a"]}, "whole numbers"),
        ({"models": ["trip"], "seeds": []}, "whole numbers"),
        ({"models": ["trip"], "held_out": []}, "all, none or domains"),
        ({"models": ["trip"], "arguments": ["--seed_everything=1"]}, "Use --seeds"),
        ({"models": [{"config": "trip", "arguments": ["--data.held_out=a"]}]}, "Use --held_out"),
    ],
)
def test_what_no_sweep_is(content, message):
    with pytest.raises(UserError, match=message):
        make_sweep(content)


@pytest.mark.parametrize(("text", "message"), [("modls: [a]", "'modls'"), ("[a]", "none"), ("{", "can't be read")])
def test_files_that_are_no_sweep(tmp_path, text, message):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_sweep(path)
    with pytest.raises(UserError, match="can't be read"):
        read_sweep(tmp_path / "nowhere.yaml")
