"""Simulated secure sums: the server sees only the sum of all updates, which excludes some options."""

from dataclasses import dataclass

import pytest
import torch

from fedvlp.core.aggregation.privacy import DPFedAvg
from fedvlp.core.aggregation.robust import CoordinateMedian
from fedvlp.core.aggregation.server_optimizers import FedAdam
from fedvlp.core.phases import Phase
from fedvlp.core.strategies import ByName, FedAvg, Local
from fedvlp.training.add_ons.fed_dyn import FedDyn
from fedvlp.training.add_ons.fed_nova import FedNova
from fedvlp.training.add_ons.fed_prox import FedProx
from fedvlp.training.secure_sum import sum_threshold
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, Points, federation, make_callback


def train(tmp_path, data=None, **options):
    """Train, and return the run and each phase's server state and updates."""
    phases = []
    callback = make_callback(on_phase_end=lambda _, task, server, updates: phases.append((server, updates)))
    run = federation(tmp_path, callbacks=[callback], **options)
    run.fit(Linear(), data or Points(5))
    return run, phases


def test_the_server_sees_the_mean_instead_of_each_update(tmp_path):
    run, phases = train(tmp_path / "sum", secure_sum=True)
    plain, _ = train(tmp_path / "plain")
    for server, updates in phases:
        assert [update.client.id for update in updates] == [0, 1, 2, 3, 4]
        assert all(torch.equal(update.state["weight"], server.shared["weight"]) for update in updates)
    assert not any(name.startswith("client") for row in run.run_state.history for name in row)
    assert any(name.startswith("client") for row in plain.run_state.history for name in row)
    # The mean in float32 rounds in each step.
    weight = run.run_state.server.shared["weight"]
    assert torch.allclose(weight, plain.run_state.server.shared["weight"], rtol=1e-5, atol=1e-7)
    assert weight.abs().max() > 0.1


def test_the_mean_is_exact_in_fixed_point_despite_dropouts(tmp_path):
    """A client's first update does not depend on the others. Weights are 8 to 24 images."""
    separate = []
    for client in range(5):
        data = Points(5)
        data.clients = [data.clients[client]]
        separate.append(train(tmp_path / str(client), data, rounds=1)[0].run_state.server.shared["weight"])
    _, phases = train(tmp_path / "all", Points(5, spoil=True), rounds=1, secure_sum=True)
    server, updates = phases[0]
    assert [update.client.id for update in updates] == [1, 2, 3, 4]
    numbers = sum(torch.round(separate[client].double() * (8 + 4 * client) * 2**32).long() for client in range(1, 5))
    expected = (numbers.double() / (72 * 2**32)).float()
    assert torch.equal(server.shared["weight"], expected)


def test_the_order_of_clients_changes_no_bit(tmp_path):
    reversed_data = Points(5)
    reversed_data.clients = reversed_data.clients[::-1]
    options = {"secure_sum": True, "aggregation": FedAdam(learning_rate=0.125)}
    one, _ = train(tmp_path / "one", **options)
    other, _ = train(tmp_path / "other", reversed_data, **options)
    weight = one.run_state.server.shared["weight"]
    assert torch.equal(weight, other.run_state.server.shared["weight"])
    assert weight.abs().max() > 0.1


class Failing(Points):
    """Points with a first client that fails to load its data."""

    def train_dataloader(self, client=None, seed=None, once=False):
        if client.id == 0:
            raise OSError("no such file")
        return super().train_dataloader(client, seed)


def test_below_the_threshold_the_run_ends(tmp_path):
    assert [sum_threshold(count) for count in (3, 4, 5, 6, 50)] == [3, 3, 3, 4, 26]
    with pytest.raises(UserError, match="2 of 3 clients are usable, and 3 are needed"):
        train(tmp_path, Failing(3), secure_sum=True)


class Large(Linear):
    """Starts with a value that is too large for the sum."""

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.weight[1, 2] = 40.0


def test_a_value_that_is_too_large_is_rejected(tmp_path):
    run = federation(tmp_path, secure_sum=True)
    with pytest.raises(UserError, match="uploads a value beyond 32, the limit of a secure sum"):
        run.fit(Large(), Points(3))


@dataclass(frozen=True)
class Unknown(FedAvg):
    """Declares that it reads single updates."""

    reduces_cohort = False


SINGLE_UPDATES = "phase 'train', because {} reads single updates"
EXCLUDED = {
    "median": ({"aggregation": CoordinateMedian()}, SINGLE_UPDATES.format("CoordinateMedian")),
    "noise": ({"aggregation": DPFedAvg(clip_norm=1.0, noise_multiplier=1.0)}, SINGLE_UPDATES.format("DPFedAvg")),
    "around": ({"aggregation": FedAdam(inner=CoordinateMedian())}, SINGLE_UPDATES.format("FedAdam")),
    "norm bound": ({"max_update_norm": 2.5}, "server.max_update_norm, because single updates are hidden"),
    "cohort": ({"cohort_size": 4}, "clients.cohort_size, because sums over different cohorts could be subtracted"),
    "stragglers": ({"stragglers": 0.5}, "clients.stragglers, because all clients must get the same task"),
    "retry": ({"on_failure": "retry"}, "clients.on_failure retry, because a failed client can't rejoin a sum"),
    "weights": ({"add_ons": FedNova()}, "the add-on FedNova, which reads single updates on the server"),
    "controls": ({"add_ons": [FedProx(0.5), FedDyn(0.5)]}, "the add-on FedDyn, which"),
}


@pytest.mark.parametrize("name", EXCLUDED)
def test_options_that_need_single_updates_are_rejected_before_the_run(name, tmp_path):
    options, reason = EXCLUDED[name]
    with pytest.raises(UserError, match=f"secure_sum does not support {reason}"):
        federation(tmp_path, secure_sum=True, default_callbacks=True, **options).fit(Linear(), Points(5))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("strategy", "name"),
    [(Unknown(), "Unknown"), (Local(), "Local"), (ByName({"weight": FedAvg(), "other": FedAvg("uniform")}), "ByName")],
    ids=["own", "local", "two weightings"],
)
def test_strategies_that_need_more_than_one_sum_are_rejected(strategy, name, tmp_path):
    class Method(Linear):
        def configure_phases(self):
            return [Phase("train", train=("weight",), upload=("weight",), strategy=strategy)]

    run = federation(tmp_path, secure_sum=True)
    with pytest.raises(UserError, match=f"phase 'train', because {name} needs more than one weighted mean"):
        run.fit(Method(), Points(5))


@pytest.mark.parametrize("count", [2, 64])
def test_too_few_or_too_many_clients_are_rejected(count, tmp_path):
    with pytest.raises(UserError, match=f"does not support {count} clients, but only 3 to 63"):
        train(tmp_path, Points(count), secure_sum=True)
