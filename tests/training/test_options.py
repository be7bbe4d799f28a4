"""Options of a federation: how many clients a round needs, and what replaces options of Lightning's Trainer."""

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


def test_replaced_options_are_lightnings_or_of_a_group():
    of_groups = {field.name for group in GROUPS.values() for field in fields(group)}
    assert REPLACEMENTS.keys() - of_groups <= set(THEIRS) - set(OURS)


def test_what_is_to_be_used_instead_is_there():
    named = set(re.findall(r"--trainer\.([\w.]*\w)", " ".join(REPLACEMENTS.values())))
    grouped = {f"{name}.{field.name}" for name, group in GROUPS.items() for field in fields(group)}
    assert {name for name in named if not name.startswith("callbacks.")} <= {*OURS, *grouped}
    assert {"rounds", "local.steps", "evaluate_every", "local.gradient_clip_val"} <= named


@pytest.mark.parametrize("words", [["--trainer.max_epochs", "3"], ["--trainer.max_epochs=3"], ["--config={}"]])
def test_the_command_line_says_so_too(words, tmp_path):
    config = tmp_path / "other.yaml"
    config.write_text("trainer: {max_epochs: 3}", encoding="utf-8")
    arguments = [word.format(config) for word in words]
    with pytest.raises(UsageError, match=rf"trainer.max_epochs: .*{REPLACEMENTS['max_epochs']}"):
        ParsingCLI.make(["--model=ZeroShotCLIP", *arguments])


def test_determinism_is_demanded_of_pytorch_and_cublas(tmp_path, monkeypatch):
    demanded = []
    monkeypatch.setattr("torch.use_deterministic_algorithms", demanded.append)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    for deterministic in (False, True):
        federation(tmp_path, rounds=0, deterministic=deterministic, default_callbacks=False).fit(Linear(), Points())
    assert demanded == [True]
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


CLIENTS = [Client(id, 0, 5) for id in (3, 0, 8, 1)]


def options(cohort_size, min_clients):
    clients = Clients(cohort_size=cohort_size)
    return RunOptions(3, 0, "32-true", clients=clients, server=Server(min_clients=min_clients))


@pytest.mark.parametrize(("cohort_size", "min_clients", "found"), [(None, 5, 4), (3, 4, 3), (9, 5, 4)])
def test_too_few_clients_are_refused(cohort_size, min_clients, found):
    check_clients(options(cohort_size, min_clients - 1), CLIENTS)
    with pytest.raises(UserError, match=rf"{found} clients, but min_clients is {min_clients}"):
        check_clients(options(cohort_size, min_clients), CLIENTS)
