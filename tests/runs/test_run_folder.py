"""What must be equal for a run to go on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from fedvlp.core.phases import Phase
from fedvlp.core.slots import Slots
from fedvlp.core.strategies import ByName, FedAvg, MovingAverage, Strategy, ema_share
from fedvlp.runs.run_folder import describe_phases
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, Points, federation, file_callbacks


@dataclass(frozen=True)
class Shrunk(Strategy):
    """Keeps a share of the mean."""

    share: float = 0.5

    def aggregate(self, server, updates):
        server = FedAvg().aggregate(server, updates)
        return server.updated({name: self.share * value for name, value in server.shared.items()})


class ShrunkLinear(Linear):
    """A method whose code, and no option, says how much its server keeps."""

    share = 0.5

    def configure_phases(self):
        return [replace(phase, strategy=Shrunk(self.share)) for phase in super().configure_phases()]


def test_phases_are_described_down_to_the_innermost_strategy():
    average = MovingAverage(FedAvg("uniform"), ema_share(0.75), ("a",))
    strategy = ByName({"a": average, ("b", "c"): Slots("domain", 3)})
    described = describe_phases([Phase("both", train=("a", "b"), upload=("a", "b", "c"), strategy=strategy)])
    mean = {"class": "WeightedMean"}
    fed_avg = {"class": "FedAvg", "weighting": "uniform", "aggregator": mean, "memory_name": "FedAvg"}
    moving = {"class": "MovingAverage", "inner": fed_avg, "names": ["a"], "sends_average": False}
    slots = {"class": "Slots", "by": "domain", "slots": 3, "aggregator": mean, "memory_name": "Slots"}
    assert described == {
        "both": {
            "train": ["a", "b"],
            "upload": ["a", "b", "c"],
            "strategy": {"class": "ByName", "parts": {"a": moving, "('b', 'c')": slots}},
        }
    }


def test_a_run_does_not_go_on_with_another_strategy(tmp_path, monkeypatch):
    options = {"name": "run", **file_callbacks()}
    federation(tmp_path, rounds=1, **options).fit(ShrunkLinear(), Points())
    federation(tmp_path, rounds=2, **options).fit(ShrunkLinear(), Points(), ckpt_path="last")
    monkeypatch.setattr(ShrunkLinear, "share", 0.25)
    with pytest.raises(UserError, match=r"phases.train.strategy.share: was 0.5, is 0.25"):
        federation(tmp_path, rounds=3, **options).fit(ShrunkLinear(), Points(), ckpt_path="last")


def test_a_run_does_not_go_on_with_other_augmentation(tmp_path):
    options = {"name": "run", **file_callbacks()}
    data = Points()
    data.augmentation = "none"
    federation(tmp_path, rounds=1, **options).fit(Linear(), data)
    data.augmentation = "crop_flip"
    with pytest.raises(UserError, match=r"training\.augmentation: was None, is 'crop_flip'"):
        federation(tmp_path, rounds=2, **options).fit(Linear(), data, ckpt_path="last")
