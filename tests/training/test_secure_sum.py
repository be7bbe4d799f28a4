"""A simulation in which the server sees the sum of all updates alone, and what it rules out."""

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
from tests.helpers.toy_federation import Linear, Points, federation, noting


def trained(tmp_path, data=None, **options):
    """A run, and for each phase the server after it and its updates."""
    phases = []
    kept = noting(on_phase_end=lambda _, task, server, updates: phases.append((server, updates)))
    run = federation(tmp_path, default_callbacks=False, callbacks=[kept], **options)
    run.fit(Linear(), data or Points(5))
    return run, phases


def test_the_server_sees_the_mean_in_place_of_each_update(tmp_path):
    run, phases = trained(tmp_path / "sum", secure_sum=True)
    plain, _ = trained(tmp_path / "plain")
    for server, updates in phases:
        assert [update.client.id for update in updates] == [0, 1, 2, 3, 4]
        assert all(torch.equal(update.state["weight"], server.shared["weight"]) for update in updates)
    assert not any(name.startswith("client") for row in run.run_state.history for name in row)
    assert any(name.startswith("client") for row in plain.run_state.history for name in row)
    # As exact as the mean in float32, which rounds in each of its steps.
    weight = run.run_state.server.shared["weight"]
    assert torch.allclose(weight, plain.run_state.server.shared["weight"], rtol=1e-5, atol=1e-7)
    assert weight.abs().max() > 0.1


def test_the_mean_is_that_of_the_fixed_point_numbers_whoever_drops_out(tmp_path):
    """The first round's updates are those of each client alone, weighed by 8 to 24 images."""
    alone = []
    for client in range(5):
        data = Points(5)
        data.clients = [data.clients[client]]
        alone.append(trained(tmp_path / str(client), data, rounds=1)[0].run_state.server.shared["weight"])
    _, phases = trained(tmp_path / "all", Points(5, spoil=True), rounds=1, secure_sum=True)
    server, updates = phases[0]
    assert [update.client.id for update in updates] == [1, 2, 3, 4]
    numbers = sum(torch.round(alone[client].double() * (8 + 4 * client) * 2**32).long() for client in range(1, 5))
    expected = (numbers.double() / (72 * 2**32)).float()
    assert torch.equal(server.shared["weight"], expected)


def test_servers_optimizers_follow_the_mean_and_the_order_of_clients_changes_no_bit(tmp_path):
    turned = Points(5)
    turned.clients = turned.clients[::-1]
    options = {"secure_sum": True, "aggregation": FedAdam(learning_rate=0.125)}
    one, _ = trained(tmp_path / "one", **options)
    other, _ = trained(tmp_path / "other", turned, **options)
    weight = one.run_state.server.shared["weight"]
    assert torch.equal(weight, other.run_state.server.shared["weight"])
    assert weight.abs().max() > 0.1


class Failing(Points):
    """Whose first client has no images to train with."""

    def train_dataloader(self, client=None, seed=None):
        if client.id == 0:
            raise OSError("no such file")
        return super().train_dataloader(client, seed)


def test_below_the_threshold_the_run_ends(tmp_path):
    assert [sum_threshold(count) for count in (3, 4, 5, 6, 50)] == [3, 3, 3, 4, 26]
    with pytest.raises(UserError, match="2 of 3 clients are usable, and 3 are needed"):
        trained(tmp_path, Failing(3), secure_sum=True)


class Large(Linear):
    """Begins with a number that has no place in the sum."""

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.weight[1, 2] = 40.0


def test_a_number_that_is_too_large_is_refused_and_not_cut_off(tmp_path):
    run = federation(tmp_path, default_callbacks=False, secure_sum=True)
    with pytest.raises(UserError, match="uploads a value beyond 32, the limit of a secure sum"):
        run.fit(Large(), Points(3))


@dataclass(frozen=True)
class Unknown(FedAvg):
    """Changes what comes in, and says so."""

    reduces_cohort = False


AT_ONE = "phase 'train', because {} reads single updates"
RULED_OUT = {
    "median": ({"aggregation": CoordinateMedian()}, AT_ONE.format("CoordinateMedian")),
    "noise": ({"aggregation": DPFedAvg(clip_norm=1.0, noise_multiplier=1.0)}, AT_ONE.format("DPFedAvg")),
    "around": ({"aggregation": FedAdam(inner=CoordinateMedian())}, AT_ONE.format("FedAdam")),
    "norm bound": ({"max_update_norm": 2.5}, "server.max_update_norm, because single updates are hidden"),
    "cohort": ({"cohort_size": 4}, "clients.cohort_size, because sums over different cohorts could be subtracted"),
    "stragglers": ({"stragglers": 0.5}, "clients.stragglers, because all clients must get the same task"),
    "retry": ({"on_failure": "retry"}, "clients.on_failure retry, because a failed client can't rejoin a sum"),
    "weights": ({"add_ons": FedNova()}, "the add-on FedNova, which reads single updates on the server"),
    "controls": ({"add_ons": [FedProx(0.5), FedDyn(0.5)]}, "the add-on FedDyn, which"),
}


@pytest.mark.parametrize("name", RULED_OUT)
def test_what_needs_single_updates_is_refused_by_name_before_the_run(name, tmp_path):
    options, reason = RULED_OUT[name]
    with pytest.raises(UserError, match=f"secure_sum does not support {reason}"):
        trained(tmp_path, secure_sum=True, **options)
    assert not list(tmp_path.glob("*/*/checkpoints"))


@pytest.mark.parametrize(
    ("strategy", "name"),
    [(Unknown(), "Unknown"), (Local(), "Local"), (ByName({"weight": FedAvg(), "other": FedAvg("uniform")}), "ByName")],
    ids=["own", "local", "two weightings"],
)
def test_strategies_that_need_more_than_one_sum_are_refused_by_name(strategy, name, tmp_path):
    class Method(Linear):
        def configure_phases(self):
            return [Phase("train", train=("weight",), upload=("weight",), strategy=strategy)]

    run = federation(tmp_path, default_callbacks=False, secure_sum=True)
    with pytest.raises(UserError, match=f"phase 'train', because {name} needs more than one weighted mean"):
        run.fit(Method(), Points(5))


@pytest.mark.parametrize("count", [2, 64])
def test_sums_of_two_and_of_more_than_there_is_room_for_are_refused(count, tmp_path):
    with pytest.raises(UserError, match=f"does not support {count} clients, but only 3 to 63"):
        trained(tmp_path, Points(count), secure_sum=True)


def test_a_local_add_on_is_no_hindrance(tmp_path):
    one, _ = trained(tmp_path / "one", secure_sum=True, add_ons=FedProx(0.5))
    other, _ = trained(tmp_path / "other", secure_sum=True)
    assert not torch.equal(one.run_state.server.shared["weight"], other.run_state.server.shared["weight"])
