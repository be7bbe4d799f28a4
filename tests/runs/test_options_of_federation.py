"""What must be equal for a run to go on: each option of the federation and of what it is made of, by the signatures.

An option that is new must change what is compared, or be named here with the reason why it need not.
"""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass

import pytest

from fedvlp.core import aggregation
from fedvlp.core.aggregation.base import Aggregator
from fedvlp.core.aggregation.privacy import DPFedAvg
from fedvlp.core.aggregation.robust import CoordinateMedian, Krum, MultiKrum, NormClipping, TrimmedMean
from fedvlp.federation import Federation
from fedvlp.runs.descriptions import describe_run
from fedvlp.tools import attacks
from fedvlp.tools.attacks import SignFlip
from fedvlp.training import local_training
from fedvlp.training.add_ons import PUBLIC
from fedvlp.training.add_ons.fed_dyn import FedDyn
from fedvlp.training.cohort import Attack
from fedvlp.training.local_training import ExponentialDecay, Schedule
from fedvlp.training.options import describe_training
from tests.helpers.options import different, options_of, other_value, record
from tests.helpers.toy_federation import Linear, Points, federation, file_callbacks
from tests.helpers.trainer_options import GROUP_OF, GROUPS

VALUES = {
    "steps": 5,
    "schedule": ExponentialDecay(0.75),
    "cohort_size": 2,
    "baselines": ("zero_shot",),
    "accelerator": "cpu",
    "devices": 1,
    "min_clients": 2,
    "strategy": "ddp",
    "precision": "bf16-mixed",
    "num_threads": 1,
    "logger": None,
    "callbacks": None,
    "default_root_dir": None,
    "name": "other",
    "on_failure": "retry",
    "max_update_norm": 3.5,
    "aggregation": TrimmedMean(0.375),
    "add_ons": FedDyn(0.375),
    "gradient_clip_val": 1.5,
    "attack": SignFlip(clients=2, seed=5, scale=0.625),
}
MAY_DIFFER = {
    "rounds": "a run may go on for more",
    "evaluate_every": "says when results are measured, and changes none",
    "accelerator": "a run may move to another machine; results differ by rounding",
    "devices": "as accelerator",
    "num_nodes": "as accelerator",
    "strategy": "starts processes",
    "num_threads": "as accelerator",
    "logger": "reports",
    "callbacks": "report",
    "default_root_dir": "a run may be moved",
    "name": "as default_root_dir",
    "enable_progress_bar": "reports",
    "baselines": "report",
    "default_callbacks": "report and write",
    "personal_on_disk": "keeps the same elsewhere",
    "on_failure": "what is done about a failure, which a run that goes on may have to change",
    "min_clients": "as on_failure",
    "deterministic": "as accelerator",
    "fast_dev_run": "leaves nothing to go on from",
    "collective_timeout": "says how long processes wait for each other",
}
NOT_BUILT = ("strategy", "num_nodes", "deterministic", "fast_dev_run")
"""Options whose other values this machine may not have, or that change the process or all others."""


class Keyed(Points):
    """Points that keep under which key their features would be cached."""

    def bind(self, **options):
        self.key = options["key"]


def begun(tmp_path, **options):
    """The federation before its first round, and its data."""
    made = federation(tmp_path, **({"rounds": 0, **file_callbacks()} | options))
    data = Keyed()
    made.fit(Linear(), data)
    return made, data


FLAT = [name for name in options_of(Federation) if name not in GROUPS]
DESCRIBED_AS = {"epochs": "local_epochs", "steps": "local_steps", "dropout": "client_dropout"}
"""Where a description has another name than the option."""


@pytest.mark.parametrize("name", [name for name in [*FLAT, *GROUP_OF] if name not in NOT_BUILT])
def test_a_run_goes_on_only_with_the_same_option(tmp_path, name):
    value = (
        str(tmp_path / "other")
        if name == "default_root_dir"
        else other_value(GROUPS.get(GROUP_OF.get(name), Federation), name, VALUES)
    )
    one, data = begun(tmp_path)
    other, other_data = begun(tmp_path, **{name: value})
    found = different(one.description, other.description)
    if name in MAY_DIFFER:
        assert found == set()
    else:
        assert f"training.{DESCRIBED_AS.get(name, name)}" in found
    has_other_row = record(one.description).settings != record(other.description).settings
    assert has_other_row == (name not in MAY_DIFFER and name != "seed")
    assert (data.key != other_data.key) == (name == "precision")


def test_those_that_may_differ_are_options():
    assert not MAY_DIFFER.keys() - {*FLAT, *GROUP_OF}
    assert set(NOT_BUILT) <= MAY_DIFFER.keys()


def kinds(package, base):
    """The classes of a package that a user can choose."""
    found = [each for each in vars(package).values() if inspect.isclass(each) and issubclass(each, base)]
    return [each for each in found if not inspect.isabstract(each) and is_dataclass(each)]


PARTS = [("schedule", kind) for kind in kinds(local_training, Schedule)]
PARTS += [("aggregation", kind) for kind in kinds(aggregation, Aggregator)]
PARTS += [("attack", kind) for kind in kinds(attacks, Attack)]
PARTS += [("add_ons", kind) for kind in PUBLIC.values()]
PART_OPTIONS = [(option, kind, name) for option, kind in PARTS for name in options_of(kind)]
PART_VALUES = {"inner": CoordinateMedian(), "clients": 2}
PART_BASE = {
    ExponentialDecay: {"gamma": 0.625},
    Krum: {"byzantine": 1},
    MultiKrum: {"byzantine": 1, "selected": 4},
    NormClipping: {"max_norm": 2.5},
    DPFedAvg: {"clip_norm": 2.25, "noise_multiplier": 0.375},
}
PART_NEEDED = {
    **PART_VALUES,
    "byzantine": 2,
    "selected": 3,
    "max_norm": 1.25,
    "gamma": 0.375,
    "clip_norm": 0.875,
    "noise_multiplier": 0.25,
    "quantile": 0.625,
    "count_noise": 2.5,
    "noise_from": "system",
    "noise_at": "client",
    "expected_clients": 4,
    "seed": 7,
}


@pytest.mark.parametrize(
    ("option", "kind", "name"), PART_OPTIONS, ids=[f"{kind.__name__}-{name}" for _, kind, name in PART_OPTIONS]
)
def test_a_run_goes_on_only_with_the_same_schedule_rule_and_attack(option, kind, name):
    described = DESCRIBED_AS.get(option, option)
    base = PART_BASE.get(kind, {})
    value = other_value(kind, name, PART_NEEDED)
    one, other = (describe(**{option: kind(**given)}) for given in (base, base | {name: value}))
    parts = [each["training"][described] for each in (one, other)]
    first, second = [part[0] if isinstance(part, list) else part for part in parts]
    assert first["class"] == kind.__name__
    assert first.keys() == second.keys()
    assert first[name] != second[name]
    assert different(one, other)
    assert record(one).settings != record(other).settings


def describe(**options):
    """What is written of a run with these options."""
    with_all = federation("runs", default_callbacks=False, **options)
    with_all.module = Linear()
    with_all.data = Points()
    return describe_run(Linear(), Points(), (), describe_training(with_all))
