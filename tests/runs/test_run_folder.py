"""Names and locks of run folders, finding checkpoints, and descriptions that must match to resume a run."""

import pytest
import torch

from fedvlp.core.phases import Phase
from fedvlp.core.slots import Slots
from fedvlp.core.strategies import ByName, FedAvg, MovingAverage, ema_share
from fedvlp.runs.descriptions import describe_optimizer, describe_phases, load_deployed_to_all, run_name
from fedvlp.runs.run_folder import find_checkpoints, find_run_folder
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation, file_callbacks


def test_phases_are_described_down_to_the_innermost_strategy():
    average = MovingAverage(FedAvg("uniform"), ema_share(0.75), ("a",))
    strategy = ByName({"a": average, ("b", "c"): Slots("domain", 3)})
    described = describe_phases([Phase("both", train=("a", "b"), upload=("a", "b", "c"), strategy=strategy)])
    mean = {"class": "WeightedMean"}
    fed_avg = {"class": "FedAvg", "weighting": "uniform", "aggregator": mean}
    moving = {"class": "MovingAverage", "inner": fed_avg, "names": ["a"], "sends_average": False}
    slots = {"class": "Slots", "by": "domain", "slots": 3, "aggregator": mean}
    assert described == {
        "both": {
            "train": ["a", "b"],
            "upload": ["a", "b", "c"],
            "strategy": {"class": "ByName", "parts": {"a": moving, "('b', 'c')": slots}},
        }
    }


def touched(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def checkpoint(run, number):
    return touched(run / "checkpoints" / f"round-{number:05d}.safetensors")


class Held(Points):
    """Points with these held-out domains."""

    def __init__(self, *held_out):
        super().__init__()
        self.held_out_domains = list(held_out)


def test_a_run_is_named_after_method_data_and_held_out_domains():
    for held_out, name in (
        ((), "Linear-Held-none"),
        (("photo", "art 1.5/x"), "Linear-Held-photo+art_1.5_x"),
        (("é\n..-_+",), "Linear-Held-é_..-_+"),
    ):
        assert run_name(Linear(), Held(*held_out)) == name


def test_checkpoints_of_the_newest_run_with_any_are_listed_newest_first(tmp_path):
    old, new = tmp_path / "2026-01-02", tmp_path / "2026-01-10"
    expected = [checkpoint(new, number) for number in (3, 11, 2)]
    checkpoint(old, 40)
    (tmp_path / "2026-02-01" / "checkpoints").mkdir(parents=True)
    touched(new / "checkpoints" / "round-00099.part")
    by_round = [expected[1], expected[0], expected[2]]
    assert find_checkpoints(tmp_path) == by_round
    assert find_checkpoints(new) == by_round
    assert [path.name for path in find_checkpoints(old)] == ["round-00040.safetensors"]
    assert find_checkpoints(tmp_path / "2026-02-01") == find_checkpoints(tmp_path / "gone") == []


def test_the_run_of_a_file_or_folder(tmp_path):
    run = tmp_path / "runs" / "2026-01-02"
    path = checkpoint(run, 4)
    prompts = touched(run / "prompts.safetensors")
    for where in (path, prompts, run, tmp_path / "runs"):
        assert find_run_folder(where) == run
    assert find_run_folder(tmp_path / "gone") == tmp_path / "gone"


def test_personal_prompts_cannot_predict(tmp_path):
    for kind in (Linear, PersonalBias):
        made = federation(tmp_path, rounds=1, name=kind.__name__, **file_callbacks())
        made.fit(kind(), Points())
        if kind is Linear:
            assert load_deployed_to_all(made.folder, Linear()).keys() == {"weight"}
            continue
        with pytest.raises(UserError, match="PersonalBias keeps tensors on each client"):
            load_deployed_to_all(made.folder, PersonalBias())
        whole = PersonalBias()
        whole.held_out_evaluation = "shared"
        assert load_deployed_to_all(made.folder, whole).keys() == {"weight"}


def test_optimizers_are_described_by_class_and_settings():
    module = Linear()
    module.make_optimizer = lambda parameters: torch.optim.Adam(parameters, lr=0.25, betas=(0.5, 0.75))
    described = describe_optimizer(module)
    expected = {"class": "Adam", "lr": 0.25, "betas": "(0.5, 0.75)", "amsgrad": False, "foreach": None}
    assert {name: described[name] for name in expected} == expected
    module.make_optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.25, momentum=0)
    assert describe_optimizer(module)["momentum"] == 0
    module.make_optimizer = None
    assert describe_optimizer(module) is None
