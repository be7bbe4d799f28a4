"""What every add-on must leave unchanged: clients that are left out, what is counted, what is private."""

from dataclasses import dataclass, replace

import pytest
import torch

from fedvlp.callbacks import Communication
from fedvlp.core.aggregation.privacy import DPFedAvg
from fedvlp.core.phases import Phase
from fedvlp.core.slots import Slots
from fedvlp.core.strategies import ByName, FedAvg, Local, MovingAverage, ema_share
from fedvlp.training.add_ons import AddOn, LocalResult
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
from tests.helpers.toy_federation import Linear, PersonalBias, Points
from tests.helpers.written_out import Whole, federation

ADD_ONS = [Scaffold(), FedDyn(0.3), FedNova(), FedDGGA(0.6), MOON(2.0), FedProx(0.1)]
each_add_on = pytest.mark.parametrize("add_on", ADD_ONS, ids=lambda add_on: type(add_on).__name__)


@each_add_on
def test_what_is_kept_on_a_client_that_is_left_out_stays_as_it_was(tmp_path, add_on):
    class FailsLater(Points):
        """The first client's images are spoilt in the second round."""

        def train_dataloader(self, client=None, seed=None):
            self.spoil = self.trainer.run_state.server.round == 1
            return super().train_dataloader(client, seed)

    kept = []
    for rounds in (1, 2):
        run = federation(tmp_path, rounds=rounds, add_ons=add_on)
        run.fit(Linear(), FailsLater())
        kept.append(run.run_state.optimizer_states)
    if type(add_on) in (FedNova, FedProx):
        assert kept == [{}, {}]
        return
    assert_equal(kept[0][0], kept[1][0])
    changed = [name for name in kept[0][1] if not torch.equal(kept[0][1][name], kept[1][1][name])]
    assert changed or type(add_on) is FedDGGA


SENT = {
    "Scaffold": (24, 24),
    "FedDyn": (12, 12),
    "FedNova": (13, 12),
    "FedDGGA": (14, 12),
    "MOON": (12, 12),
    "FedProx": (12, 12),
}
"""Numbers that a client of a matrix of 12 uploads and downloads."""


@each_add_on
def test_what_is_sent_is_counted(tmp_path, add_on):
    sent = SENT[type(add_on).__name__]
    run = federation(tmp_path, rounds=2, add_ons=add_on, callbacks=[Communication()])
    run.fit(Linear(), Points())
    for row in run.run_state.history:
        assert (row["upload_parameters"], row["download_parameters"]) == sent
    cost = communication_cost(Linear(), Points().clients, [add_on]).rows(rounds=2)[-1]
    assert (cost["upload_parameters"], cost["download_parameters"]) == sent
    assert cost["total_parameters"] == 2 * 3 * sum(sent)


@pytest.mark.parametrize("add_on", ADD_ONS[:-1], ids=lambda add_on: type(add_on).__name__)
def test_privacy_is_not_claimed_where_an_add_on_gets_past_the_noise(tmp_path, add_on):
    private = DPFedAvg(clip_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(UserError, match=f"not to what {type(add_on).__name__} derives from them"):
        federation(tmp_path, aggregation=private, add_ons=add_on).fit(Linear(), Points())


def test_scaled_gradients_are_refused(tmp_path):
    run = federation(tmp_path, add_ons=Scaffold())
    run.options = replace(run.options, precision="16-mixed")
    with pytest.raises(UserError, match="16-mixed scales them"):
        run.fit(Linear(), Points())


def test_a_method_that_averages_nothing_is_refused(tmp_path):
    class Alone(Linear):
        personal = ("weight",)

        def configure_phases(self):
            return [Phase("alone", train=("weight",), upload=(), strategy=Local())]

    with pytest.raises(UserError, match="no phase of Alone averages"):
        federation(tmp_path, add_ons=FedNova()).fit(Alone(), Points())


class TwoTensors(Linear):
    """A shared matrix, and a bias for each client that only the server keeps."""

    def __init__(self):
        super().__init__()
        self.biases = torch.nn.Parameter(torch.zeros(3))


def test_only_what_is_averaged_over_the_cohort_is_corrected():
    phase = Phase("train", train=("weight", "biases"), upload=("weight", "biases"), strategy=FedAvg())
    module = TwoTensors()
    assert averaged_names(module, phase) == ("weight", "biases")
    some = ByName({("biases",): Slots("client"), "weight": MovingAverage(FedAvg(), ema_share(0.5), ("weight",))})
    assert averaged_names(module, Phase("train", phase.train, phase.upload, some)) == ("weight",)
    assert averaged_names(module, Phase("train", phase.train, phase.upload, Slots("client"))) == ()
    assert averaged_names(module, Phase("train", ("biases",), phase.upload, FedAvg())) == ("biases",)
    assert averaged_names(PersonalBias(), PersonalBias().configure_phases()[0]) == ("weight",)


class TwoMeans(Linear):
    """A matrix that is averaged by the clients' points, and a bias that may be the mean of clients that count once."""

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
def test_clients_count_once_only_where_they_do_in_all_means(tmp_path, add_on, factor, weighting, share):
    run = federation(tmp_path, rounds=1, steps=2, cohort_size=1, seed=3, add_ons=add_on)
    state = run.fit(TwoMeans(weighting), Whole())
    own = run.run_state.optimizer_states
    assert list(own) == [0]
    # The server's variate, or its drift, moves by the client's share of what it kept.
    (moved,) = [value for name, value in state.memory.items() if name.endswith("/weight")]
    torch.testing.assert_close(moved, share * factor * own[0]["add_on/0/0/weight"])
    assert moved.abs().max() > 0.01


def test_the_largest_update_is_of_the_methods_own_tensors(tmp_path):
    """What an add-on sends is not counted: 900 would be too far."""

    @dataclass(frozen=True)
    class Loud(AddOn):
        def finish(self, local, upload):
            return LocalResult(upload, {"number": torch.full((1,), 900.0)})

        def upload_template(self, averaged):
            return {"number": torch.zeros(1)}

    run = federation(tmp_path, rounds=1, add_ons=Loud(), max_update_norm=50.0)
    run.fit(Linear(), Whole())
    assert "clients/rejected" not in run.run_state.history[0]
