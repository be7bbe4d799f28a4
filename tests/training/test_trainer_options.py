"""Each option of Lightning's Trainer is the federation's, too, or one line says what to use instead."""

from __future__ import annotations

import inspect
import os
import re
from dataclasses import fields

import lightning
import pytest

from fedvlp.commands.lightning_cli import ParsingCLI
from fedvlp.federation import Federation
from fedvlp.training.local_training import LocalTraining
from fedvlp.training.options import Clients, Runtime, Server
from fedvlp.training.trainer_options import INSTEAD
from fedvlp.utils.signatures import constructor_arguments
from tests.helpers.toy_federation import Linear, Points, federation

OURS = constructor_arguments(Federation)
THEIRS = list(inspect.signature(lightning.Trainer).parameters)


def test_every_option_of_the_trainer_is_ours_or_has_something_instead():
    assert set(THEIRS) - set(OURS) == INSTEAD.keys()


def test_what_is_to_be_used_instead_is_there():
    named = set(re.findall(r"--trainer\.([\w.]*\w)", " ".join(INSTEAD.values())))
    groups = {"local": LocalTraining, "server": Server, "clients": Clients, "runtime": Runtime}
    grouped = {f"{name}.{field.name}" for name, group in groups.items() for field in fields(group)}
    assert {name for name in named if not name.startswith("callbacks.")} <= {*OURS, *grouped}
    assert {"rounds", "local.steps", "evaluate_every", "fast_dev_run", "local.gradient_clip_val"} <= named


@pytest.mark.parametrize("words", [["--trainer.max_epochs", "3"], ["--trainer.max_epochs=3"], ["--config={}"]])
def test_the_command_line_says_so_too(words, tmp_path, capsys):
    config = tmp_path / "other.yaml"
    config.write_text("trainer: {max_epochs: 3}", encoding="utf-8")
    arguments = [word.format(config) for word in words]
    with pytest.raises(SystemExit):
        ParsingCLI(run=False, args=["--model=ZeroShotCLIP", *arguments], save_config_callback=None)
    assert f"max_epochs: {INSTEAD['max_epochs']}." in capsys.readouterr().err


def test_determinism_is_demanded_of_pytorch_and_cublas(tmp_path, monkeypatch):
    demanded = []
    monkeypatch.setattr("torch.use_deterministic_algorithms", demanded.append)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    for deterministic in (False, True):
        federation(tmp_path, rounds=0, deterministic=deterministic, default_callbacks=False).fit(Linear(), Points())
    assert demanded == [True]
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
