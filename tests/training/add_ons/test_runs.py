"""Every add-on: the state of skipped clients, counted communication, and privacy."""

from dataclasses import dataclass, replace

import pytest
import torch

from fedvlp.callbacks import Communication
from fedvlp.core.aggregation.privacy import DPFedAvg
from fedvlp.core.phases import Phase
from fedvlp.core.slots import Slots
from fedvlp.core.strategies import ByName, FedAvg, Local, MovingAverage, ema_share
from fedvlp.training.add_ons import AddOn, LocalResult
from fedvlp.training.add_ons.fairness import AFL, QFedAvg
from fedvlp.training.add_ons.fed_dg_ga import FedDGGA
from fedvlp.training.add_ons.fed_dyn import FedDyn
from fedvlp.training.add_ons.fed_nova import FedNova
from fedvlp.training.add_ons.fed_prox import FedProx
from fedvlp.training.add_ons.moon import MOON
from fedvlp.training.add_ons.scaffold import Scaffold
from fedvlp.training.communication import communication_cost
from fedvlp.training.task import averaged_names
from fedvlp.utils.errors import UserError
from tests.helpers.assertions import assert_equal
from tests.helpers.plain_training import Whole
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation

ADD_ONS = [Scaffold(), FedDyn(0.3), FedNova(), FedDGGA(0.6), MOON(2.0), QFedAvg(), AFL(), FedProx(0.1)]
each_add_on = pytest.mark.parametrize("add_on", ADD_ONS, ids=lambda add_on: type(add_on).__name__)


@each_add_on
def test_a_skipped_client_keeps_its_add_on_state(tmp_path, add_on):
    class FailsLater(Points):
        """The first client's images are spoilt in the second round."""

        def train_dataloader(self, client=None, seed=None, once=False):
            self.spoil = self.trainer.run_state.server.round == 1
            return super().train_dataloader(client, seed)

    memories = []
    for rounds in (1, 2):
        run = federation(tmp_path, rounds=rounds, add_ons=add_on)
        run.fit(Linear(), FailsLater())
        memories.append(run.run_state.optimizer_states)
    if type(add_on) in (FedNova, QFedAvg, AFL, FedProx):
        assert memories == [{}, {}]
        return
    assert_equal(memories[0][0], memories[1][0])
    before, after = memories[0][1], memories[1][1]
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed or type(add_on) is FedDGGA


COUNTS = {
    "Scaffold": (24, 24),
    "FedDyn": (12, 12),
    "FedNova": (13, 12),
    "FedDGGA": (14, 12),
    "MOON": (12, 12),
    "QFedAvg": (14, 12),
    "AFL": (14, 12),
    "FedProx": (12, 12),
}
"""Values that a client with a matrix of 12 values uploads and downloads."""


@each_add_on
def test_add_on_communication_is_counted(tmp_path, add_on):
    counts = COUNTS[type(add_on).__name__]
    run = federation(tmp_path, rounds=2, add_ons=add_on, callbacks=[Communication()])
    run.fit(Linear(), Points())
    for row in run.run_state.history:
        assert (row["upload_parameters"], row["download_parameters"]) == counts
    cost = communication_cost(Linear(), Points().clients, [add_on]).rows(rounds=2)[-1]
    assert (cost["upload_parameters"], cost["download_parameters"]) == counts
    assert cost["total_parameters"] == 2 * 3 * sum(counts)


@pytest.mark.parametrize("add_on", ADD_ONS[:-1], ids=lambda add_on: type(add_on).__name__)
def test_add_ons_that_bypass_the_noise_are_rejected(tmp_path, add_on):
    private = DPFedAvg(clip_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(UserError, match=f"not to what {type(add_on).__name__} derives from them"):
        federation(tmp_path, aggregation=private, add_ons=add_on).fit(Linear(), Points())


def test_scaled_gradients_are_rejected(tmp_path):
    run = federation(tmp_path, add_ons=Scaffold())
    run.options = replace(run.options, precision="16-mixed")
    with pytest.raises(UserError, match="16-mixed scales them"):
        run.fit(Linear(), Points())


def test_methods_without_an_average_are_rejected(tmp_path):
    class Alone(Linear):
        personal = ("weight",)

        def configure_phases(self):
            return [Phase("personal", train=("weight",), upload=(), strategy=Local())]

    with pytest.raises(UserError, match="no phase of Alone averages"):
        federation(tmp_path, add_ons=FedNova()).fit(Alone(), Points())


class TwoTensors(Linear):
    """A shared matrix, and one bias per client that only the server stores."""

    def __init__(self):
        super().__init__()
        self.biases = torch.nn.Parameter(torch.zeros(3))


def test_only_tensors_averaged_over_the_cohort_are_corrected():
    phase = Phase("train", train=("weight", "biases"), upload=("weight", "biases"), strategy=FedAvg())
    module = TwoTensors()
    assert averaged_names(module, phase) == ("weight", "biases")
    some = ByName({("biases",): Slots("client"), "weight": MovingAverage(FedAvg(), ema_share(0.5), ("weight",))})
    assert averaged_names(module, Phase("train", phase.train, phase.upload, some)) == ("weight",)
    assert averaged_names(module, Phase("train", phase.train, phase.upload, Slots("client"))) == ()
    assert averaged_names(module, Phase("train", ("biases",), phase.upload, FedAvg())) == ("biases",)
    assert averaged_names(PersonalBias(), PersonalBias().configure_phases()[0]) == ("weight",)


class TwoMeans(Linear):
    """A matrix averaged with the given weighting, and a bias averaged uniformly."""

    def __init__(self, weighting):
        super().__init__()
        self.weighting = weighting
        self.bias = torch.nn.Parameter(torch.zeros(3))

    def forward(self, inputs):
        return super().forward(inputs) + self.bias

    def configure_phases(self):
        names = ("weight", "bias")
        means = ByName({"weight": FedAvg(self.weighting), "bias": FedAvg("uniform")})
        return [Phase("train", train=names, upload=names, strategy=means)]


@pytest.mark.parametrize(("weighting", "share"), [("examples", 8 / 36), ("uniform", 1 / 3)])
@pytest.mark.parametrize(("add_on", "factor"), [(Scaffold(), 1.0), (FedDyn(0.3), -1 / 0.3)], ids=["Scaffold", "FedDyn"])
def test_clients_weigh_equally_only_if_all_means_are_uniform(tmp_path, add_on, factor, weighting, share):
    run = federation(tmp_path, rounds=1, steps=2, cohort_size=1, seed=3, add_ons=add_on)
    state = run.fit(TwoMeans(weighting), Whole())
    own = run.run_state.optimizer_states
    assert list(own) == [0]
    # The server's control variate or drift moves by the client's share of its stored value.
    (moved,) = [value for name, value in state.memory.items() if name.endswith("/weight")]
    torch.testing.assert_close(moved, share * factor * own[0]["add_on/0/0/weight"])
    assert moved.abs().max() > 0.01


def test_max_update_norm_ignores_add_on_tensors(tmp_path):
    """The add-on's value of 900 would exceed the norm."""

    @dataclass(frozen=True)
    class Loud(AddOn):
        def finish(self, local, upload):
            return LocalResult(upload, {"number": torch.full((1,), 900.0)})

        def upload_template(self, averaged):
            return {"number": torch.zeros(1)}

    run = federation(tmp_path, rounds=1, add_ons=Loud(), max_update_norm=50.0)
    run.fit(Linear(), Whole())
    assert "clients/rejected" not in run.run_state.history[0]
