"""Options of a federation: the minimum number of clients, and replacements for options of Lightning's Trainer."""

import inspect
import os
import re
from dataclasses import fields

import lightning
import pytest

from fedvlp.commands.lightning_cli import ParsingCLI
from fedvlp.core.state import Client
from fedvlp.federation import Federation
from fedvlp.training.options import GROUPS, REPLACEMENTS, Clients, RunOptions, Server, check_clients
from fedvlp.utils.digests import constructor_arguments
from fedvlp.utils.errors import UsageError, UserError
from tests.helpers.toy_federation import Linear, Points, federation

OURS = constructor_arguments(Federation)
THEIRS = list(inspect.signature(lightning.Trainer).parameters)


def test_replaced_options_belong_to_lightning_or_a_group():
    group_options = {field.name for group in GROUPS.values() for field in fields(group)}
    assert REPLACEMENTS.keys() - group_options <= set(THEIRS) - set(OURS)


def test_replacements_exist():
    named = set(re.findall(r"--trainer\.([\w.]*\w)", " ".join(REPLACEMENTS.values())))
    grouped = {f"{name}.{field.name}" for name, group in GROUPS.items() for field in fields(group)}
    assert {name for name in named if not name.startswith("callbacks.")} <= {*OURS, *grouped}
    assert {"rounds", "local.steps", "evaluate_every", "local.gradient_clip_val"} <= named


def test_the_command_line_names_the_replacement(tmp_path):
    config = tmp_path / "other.yaml"
    config.write_text("trainer: {max_epochs: 3}", encoding="utf-8")
    for words in (["--trainer.max_epochs", "3"], ["--trainer.max_epochs=3"], [f"--config={config}"]):
        with pytest.raises(UsageError, match=rf"trainer.max_epochs: .*{REPLACEMENTS['max_epochs']}"):
            ParsingCLI.make(["--model=ZeroShotCLIP", *words])


def test_deterministic_configures_pytorch_and_cublas(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("torch.use_deterministic_algorithms", calls.append)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    for deterministic in (False, True):
        federation(tmp_path, rounds=0, deterministic=deterministic).fit(Linear(), Points())
    assert calls == [True]
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


CLIENTS = [Client(id, 0, 5) for id in (3, 0, 8, 1)]


def options(cohort_size, min_clients):
    clients = Clients(cohort_size=cohort_size)
    return RunOptions(3, 0, "32-true", clients=clients, server=Server(min_clients=min_clients))


@pytest.mark.parametrize(("cohort_size", "min_clients", "found"), [(None, 5, 4), (3, 4, 3), (9, 5, 4)])
def test_too_few_clients_are_rejected(cohort_size, min_clients, found):
    check_clients(options(cohort_size, min_clients - 1), CLIENTS)
    with pytest.raises(UserError, match=rf"{found} clients, but min_clients is {min_clients}"):
        check_clients(options(cohort_size, min_clients), CLIENTS)
