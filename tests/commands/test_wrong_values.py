"""Every option of every command and class with values that are mostly wrong: accepted, or one line, in bounded time.

The suite tries a few of all pairs of option and value, always the same ones; with FEDVLP_WRONG_VALUES=2000 it tries
so many of each kind, and with FEDVLP_ALL_WRONG_VALUES=1 all, which takes a quarter of an hour.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import random
import time
from argparse import ArgumentError
from typing import get_args, get_origin

import pytest
import yaml

import fedvlp
from fedvlp import methods
from fedvlp.commands.cli import COMMANDS, main
from fedvlp.commands.lightning_cli import ParsingCLI
from fedvlp.commands.ranges_of_config import check_config, check_rounds
from fedvlp.core.module import FederatedModule
from fedvlp.data import FederatedDataModule
from fedvlp.data.split_rule import SplitRule
from fedvlp.federation import Federation
from fedvlp.training import schedules
from fedvlp.utils.checked import annotations_of, constraints_of
from fedvlp.utils.errors import UserError
from tests.helpers.shapes import unchecked

ALL = "FEDVLP_ALL_WRONG_VALUES" in os.environ
NUMBERS = [0, -1, 1, 2.5, -0.0, float("nan"), float("inf"), -float("inf"), 10**12, 1e12, 10**400]
WORDS = ["", " ", "x", "../../x", "0", "null", "\0", "a\nb", "狗\u202e", "x" * 10_000]
OTHER = [[], [0], ["x", "x"], {}, {"class_path": "os.system"}, {"class_path": 3}, None, True, False, [[[[]]]]]
VALUES = [*NUMBERS, *WORDS, *OTHER, {"a": {"b": [1]}}]
SLOWEST = 10.0
"""Seconds, far above what any takes on a busy machine, and far below what 1e12 of anything would."""

CLIP_OPTIONS = ("name", "pretrained", "seed", "prepack")
METHODS = sorted(set(methods.__all__) - {"PromptLearner"})
DATA = ["DomainFolders", "PACS", "StyledShapes"]
PARTITIONS = ["Dispersed", "Dirichlet", "Shards", "FewClasses", "QuantitySkew"]
SCHEDULES = ["Constant", "CosineDecay", "ExponentialDecay"]


def options_of(kind):
    """The options of a class, but for those that hold more options or come from the data."""
    return [name for name in annotations_of(kind) if name not in ("args", "options", "kwargs")]


def sample(pairs, count):
    """All pairs, or always the same few of them."""
    count = len(pairs) if ALL else int(os.environ.get("FEDVLP_WRONG_VALUES", count))
    return random.Random(5).sample(pairs, min(count, len(pairs)))


def as_yaml(value):
    """A value as it is typed."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value != value:
        return ".nan"
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n").removesuffix("\n...")


@pytest.fixture(scope="module")
def parser():
    start = ["--model=ZeroShotCLIP", "--data=StyledShapes"]
    command = ParsingCLI(run=False, args=start, save_config_callback=None, parser_kwargs={"exit_on_error": False})
    return command.parser


def option_lines():
    """Arguments of the command line: class and option, up to the equals sign."""
    lines = [([], f"--trainer.{name}") for name in inspect.signature(Federation).parameters if name != "seed"]
    lines += [([], "--seed_everything"), ([], "--model"), ([], "--data"), ([], "--trainer")]
    for name in METHODS:
        kind = getattr(fedvlp, name)
        lines += [([f"--model={name}"], f"--model.{option}") for option in options_of(kind)]
        lines += [
            ([f"--model={name}"], f"--model.clip.{option}") for option in ("name", "pretrained", "seed", "prepack")
        ]
        if "optimizer" in options_of(kind):
            sgd = [f"--model={name}", "--model.optimizer=torch.optim.SGD"]
            lines += [(sgd, f"--model.optimizer.{option}") for option in ("lr", "momentum", "foreach", "nothing")]
    for name in DATA:
        lines += [([f"--data={name}"], f"--data.{option}") for option in options_of(getattr(fedvlp, name))]
    for name in PARTITIONS:
        fields = inspect.signature(getattr(fedvlp, name)).parameters
        lines += [([f"--data.partition={name}"], f"--data.partition.{option}") for option in fields]
    for name in SCHEDULES:
        fields = inspect.signature(getattr(schedules, name)).parameters
        lines += [([f"--trainer.local.schedule={name}"], f"--trainer.local.schedule.{option}") for option in fields]
    return lines


def test_command_line(parser):
    pairs = [(line, value) for line in option_lines() for value in VALUES]
    found = {"accepted": 0, "refused": 0}
    faults = []
    for (before, option), value in sample(pairs, 150):
        given = ["--model=ZeroShotCLIP", "--data=StyledShapes", *before, f"{option}={as_yaml(value)}"]
        began = time.monotonic()
        try:
            config = parser.parse_args(given)
            check_rounds(config, given)
            check_config(config)
            found["accepted"] += 1
        except (ArgumentError, UserError) as error:
            told = parser.explain(str(error)) if isinstance(error, ArgumentError) else str(error)
            found["refused"] += 1
            if not told or len(told) > 1000 or "\n" in told:
                faults.append(f"{given[-1]:.80}: {told:.300}")
        except Exception as error:
            faults.append(f"{given[2:]!r:.120} raises {error!r:.300}")
        if time.monotonic() - began > SLOWEST:
            faults.append(f"{given[-1]:.80} takes too long")
    print(json.dumps(found))
    assert not faults, "\n".join(faults)
    assert found["refused"] > found["accepted"] / 2 > 0


def python_calls(clip, folder):
    """Constructors that need no file, with what they need."""
    needed = {"class_names": ["dog", "cat"], "domains": ["ink", "photo"], "num_clients": 3, "clip": clip}
    calls = []
    for name in METHODS:
        kind = getattr(fedvlp, name)
        own = {key: value for key, value in needed.items() if key in inspect.signature(kind).parameters}
        calls += [(kind, own, option) for option in options_of(kind) if option != "clip"]
    quiet = {"accelerator": "cpu", "default_root_dir": str(folder)}
    calls += [(Federation, quiet, option) for option in options_of(Federation)]
    calls += [(FederatedDataModule, {}, option) for option in options_of(FederatedDataModule)]
    for name in PARTITIONS:
        kind = getattr(fedvlp, name)
        calls += [(kind, {"num_clients": 3}, option) for option in inspect.signature(kind).parameters]
    for name in SCHEDULES:
        kind = getattr(schedules, name)
        own = {"gamma": 0.5} if name == "ExponentialDecay" else {}
        calls += [(kind, own, option) for option in inspect.signature(kind).parameters]
    for kind in (SplitRule, fedvlp.CLIPSpec):
        calls += [(kind, {}, option) for option in inspect.signature(kind).parameters]
    return calls


FOREIGN = {"optimizer", "callbacks", "logger", "schedule", "partition", "class_names_map"}
"""Options that take objects: of another type they fail as any Python function does, so only JSON's types are tried."""


def test_python(clip, tmp_path):
    calls = [call for call in python_calls(clip, tmp_path) if call[2] not in FOREIGN]
    pairs = [(call, value) for call in calls for value in VALUES]
    found = {"accepted": 0, "refused": 0}
    faults = []
    for (kind, needed, option), value in sample(pairs, 400):
        began = time.monotonic()
        try:
            with unchecked():
                kind(**{**needed, option: value})
            found["accepted"] += 1
        except UserError:
            found["refused"] += 1
        except Exception as error:
            faults.append(f"{kind.__name__}({option}={value!r:.80}) raises {error!r:.300}")
        if time.monotonic() - began > SLOWEST:
            faults.append(f"{kind.__name__}({option}={value!r:.80}) takes too long")
    print(json.dumps(found))
    assert not faults, "\n".join(faults)
    assert found["refused"] > found["accepted"] / 2 > 0


OTHERS = {
    "compare": ["--format", "--row", "--papers", "--data", "--nothing"],
    "report": ["--title", "--nothing"],
    "sweep": ["--file", "--config", "--models", "--held_out", "--seeds", "--workers", "--nothing"],
    "data": ["--root", "--nothing"],
    "cost": ["--format", "--data.classes", "--data.domains", "--data.num_clients", "--trainer.rounds"],
    "explain": ["--ckpt_path", "--what", "--toward", "--relevance", "--num_images", "--most_points", "--perplexity"],
    "predict": ["--ckpt_path", "--images"],
}


def test_other_commands(capsys, tmp_path, monkeypatch):
    assert OTHERS.keys() <= {command.name for command in COMMANDS}
    monkeypatch.chdir(tmp_path)
    pairs = [(name, option, value) for name, options in OTHERS.items() for option in options for value in VALUES]
    for name, option, value in sample(pairs, 60):
        given = [name, "--dry_run"] if name == "sweep" else [name]
        if name == "cost":
            given += ["--model=PromptFL", "--model.clip.name=fedvlp-tiny"]
        began = time.monotonic()
        code = 2
        with contextlib.suppress(SystemExit):
            code = main([*given, f"{option}={as_yaml(value)}"])
        assert code in (0, 1, 2)
        assert "Traceback" not in capsys.readouterr().err
        assert time.monotonic() - began < SLOWEST, (given, option, value)


def test_every_number_has_a_range():
    """A new option that is a number says what it may be, or a person has thought of it."""
    kinds = [Federation, FederatedDataModule, *(getattr(fedvlp, name) for name in METHODS + DATA)]
    kinds += [fedvlp.CLIPSpec, SplitRule, *(getattr(fedvlp, name) for name in PARTITIONS)]
    kinds += [getattr(schedules, name) for name in SCHEDULES]
    bare = []
    for kind in kinds:
        for name, hint in annotations_of(kind).items():
            is_number = any(part in (int, float) for part in (hint, *get_args(hint)))
            if name != "devices" and is_number and not constraints_of(hint):
                bare.append(f"{kind.__name__}.{name}")
    assert not bare


def test_methods_are_all_here():
    # Python 3.10 takes list[int] for a type as well.
    public = {name: getattr(fedvlp, name) for name in fedvlp.__all__}
    known = {name for name, each in public.items() if isinstance(each, type) and get_origin(each) is None}
    found = {name for name in known if issubclass(getattr(fedvlp, name), FederatedModule)}
    assert found - {"FederatedModule", "PromptLearner"} == set(METHODS)
