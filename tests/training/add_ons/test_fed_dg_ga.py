"""FedDG-GA, compared with its steps in plain numbers."""

import pytest
import torch

from fedvlp.core.aggregation.robust import CoordinateMedian
from fedvlp.core.aggregation.server_optimizers import ServerMomentum
from fedvlp.core.phases import Phase
from fedvlp.core.strategies import FedAvg
from fedvlp.training.add_ons.fed_dg_ga import FedDGGA
from fedvlp.utils.errors import UserError
from tests.helpers.plain_training import RATE, Hard, Whole, gradient, loss
from tests.helpers.toy_federation import Linear, federation, points_split

STEP = 0.6


def accuracy(data, client, weight):
    """Compute the accuracy on the client's validation images."""
    points, labels = data.points(100 + client.id, 20)
    return ((points @ weight.T).argmax(1) == labels).double().mean().item()


def slow_fed_dg_ga(data, rounds, steps, centered):
    """Compute theta and the weights after all rounds. A round's gaps are known in the next round."""
    theta = torch.zeros(3, 4)
    a = [1 / 3] * 3
    before = None
    for r in range(rounds):
        if before is not None:
            after = [accuracy(data, client, theta) for client in data.clients]
            gaps = [local - averaged for local, averaged in zip(before, after, strict=True)]
            mean = sum(gaps) / 3 if centered else 0.0
            largest = max(abs(gap - mean) for gap in gaps)
            step = (1 - (r - 1) / rounds) * STEP / 3
            if largest:
                a = [min(1.0, max(0.0, old + step * (gap - mean) / largest)) for old, gap in zip(a, gaps, strict=True)]
            a = [value / sum(a) for value in a]
        ends = []
        for client in data.clients:
            own = theta.clone()
            for _ in range(steps):
                own = own - RATE * gradient(lambda w, client=client: loss(data, client, w), own)
            ends.append(own)
        before = [accuracy(data, client, own) for client, own in zip(data.clients, ends, strict=True)]
        theta = sum(weight * own for weight, own in zip(a, ends, strict=True))
    return theta, a


@pytest.mark.parametrize("centered", [True, False])
def test_weights_match_the_paper(tmp_path, centered):
    add_on = FedDGGA(STEP, centered)
    state = federation(tmp_path, rounds=5, steps=4, add_ons=add_on).fit(Linear(RATE), Hard())
    theta, weights = slow_fed_dg_ga(Hard(), 5, 4, centered)
    assert state.memory["add_on/0/0/weights"].tolist() == pytest.approx(weights, abs=1e-6)
    torch.testing.assert_close(state.shared["weight"], theta, rtol=1e-5, atol=1e-5)
    assert max(weights) - min(weights) > 0.1
    assert sum(state.memory["add_on/0/0/weights"].tolist()) == pytest.approx(1)


class FixedAccuracy(Whole):
    """Clients with 20 validation images each. A zero matrix classifies a fixed number of them correctly."""

    right = {100: 16, 101: 15, 102: 18}  # noqa: RUF012

    def points(self, number, count):
        points, labels = super().points(number, count)
        if number in self.right:
            labels = torch.arange(count).ge(self.right[number]).long()
        return points, labels


def test_clients_whose_accuracy_does_not_change_keep_equal_weights(tmp_path):
    """0.8, 0.75 and 0.9 differ between float32 and float64, which must not count as a gap."""
    state = federation(tmp_path, rounds=5, steps=1, add_ons=FedDGGA(STEP)).fit(Linear(0.0), FixedAccuracy())
    assert state.memory["add_on/0/0/weights"].tolist() == [1 / 3] * 3


def test_the_first_round_weights_clients_equally_for_every_method(tmp_path):
    class Uniform(Linear):
        def configure_phases(self):
            return [Phase("train", train=("weight",), upload=("weight",), strategy=FedAvg("uniform"))]

    options = {"rounds": 1, "steps": 3}
    ruled = federation(tmp_path, **options, add_ons=FedDGGA()).fit(Linear(RATE), Whole())
    uniform = federation(tmp_path, **options).fit(Uniform(RATE), Whole())
    torch.testing.assert_close(ruled.shared["weight"], uniform.shared["weight"])
    later = {"rounds": 4, "steps": 3, "add_ons": FedDGGA(STEP)}
    one, other = (federation(tmp_path, **later).fit(kind(RATE), Hard()) for kind in (Linear, Uniform))
    assert torch.equal(one.shared["weight"], other.shared["weight"])


def test_held_out_images_have_no_effect(tmp_path):
    """Other held-out images change only the reported accuracy."""

    class OtherHeldOut(Hard):
        def evaluation_splits(self):
            *own, _ = super().evaluation_splits()
            points, labels = self.points(7, 20)
            return [*own, points_split("held_out", "other", None, [({"features": points}, labels)])]

    run = {"rounds": 3, "steps": 3, "add_ons": FedDGGA(STEP)}
    one, other = (federation(tmp_path, **run).fit(Linear(RATE), data()) for data in (Hard, OtherHeldOut))
    assert torch.equal(one.memory["add_on/0/0/weights"], other.memory["add_on/0/0/weights"])


class WithoutValidation(Whole):
    """The second client's domain has no validation images."""

    def evaluation_splits(self):
        return [split for split in super().evaluation_splits() if split.domain != "client1"]


def test_unsupported_data_and_aggregators_are_rejected(tmp_path):
    with pytest.raises(UserError, match="'client1' has none"):
        federation(tmp_path, add_ons=FedDGGA()).fit(Linear(), WithoutValidation())
    with pytest.raises(UserError, match="CoordinateMedian ignores weights"):
        federation(tmp_path, add_ons=FedDGGA(), aggregation=CoordinateMedian()).fit(Linear(), Whole())
    federation(tmp_path, rounds=1, add_ons=FedDGGA(), aggregation=ServerMomentum()).fit(Linear(), Whole())
