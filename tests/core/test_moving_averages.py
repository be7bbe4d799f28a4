"""Tensors that follow from others, and downloads of a part; numbers worked out by hand."""

from __future__ import annotations

import copy

import pytest
import torch

from fedvlp.core.phases import Phase
from fedvlp.core.slots import Slots
from fedvlp.core.state import Client, ClientUpdate, ServerState
from fedvlp.core.strategies import FedAvg, MovingAverage, ServerComputed, ema_share
from fedvlp.utils.errors import UserError


def update(id, **state):
    return ClientUpdate(Client(id, id, 1), {name: torch.tensor(value) for name, value in state.items()}, 1)


def total(shared):
    return {"total": shared["stack"].sum(0) * shared["factor"]}


@pytest.fixture
def server():
    return ServerState.start({"stack": torch.zeros(3, 2), "factor": torch.tensor(10.0), "total": torch.zeros(2)})


def test_derived_tensors_follow_every_aggregation(server):
    strategy = ServerComputed(Slots("client"), total)
    after = strategy.aggregate(server, [update(0, stack=[1.0, 2.0]), update(2, stack=[3.0, 5.0])])
    assert after.shared["total"].tolist() == after.deployed["total"].tolist() == [40.0, 70.0]
    again = strategy.aggregate(after, [update(0, stack=[0.0, 0.0])])
    assert again.shared["total"].tolist() == [30.0, 50.0]


def test_they_are_made_from_what_was_just_averaged(server):
    after = ServerComputed(FedAvg("uniform"), total).aggregate(server, [update(0, factor=1.0), update(1, factor=3.0)])
    assert after.shared["factor"].item() == 2.0
    assert after.shared["total"].tolist() == [0.0, 0.0]


def test_a_phase_restricts_what_is_downloaded_and_deployed(server):
    strategy = ServerComputed(Slots("client"), total)
    phase = Phase("train", ("stack",), ("stack",), strategy, download=("total", "factor"), deploy=("total",))
    assert set(phase.broadcast(server, Client(0, 0, 1))) == {"total", "factor"}
    after = phase.aggregate(server, [update(1, stack=[1.0, 1.0])])
    assert set(after.deployed) == {"total"}
    assert set(after.shared) == {"stack", "factor", "total"}
    averaged = MovingAverage(strategy, ema_share(0.5), ("total",)).aggregate(after, [update(1, stack=[3.0, 3.0])])
    assert averaged.deployed["total"].tolist() == [20.0, 20.0]
    assert phase.aggregate(server, []) is server


def test_no_updates_change_nothing(server):
    assert ServerComputed(Slots("client"), total).aggregate(server, []) is server


def test_no_graph_is_kept_and_nothing_given_is_changed(server):
    weight = torch.ones(2, requires_grad=True)
    strategy = ServerComputed(Slots("client"), lambda shared: {"total": shared["stack"].sum(0) * weight})
    before = copy.deepcopy(server)
    after = strategy.aggregate(server, [update(0, stack=[1.0, 2.0])])
    assert not after.shared["total"].requires_grad
    assert all(torch.equal(server.shared[name], value) for name, value in before.shared.items())


def test_clients_are_checked_by_the_strategy_inside():
    mixed = [Client(0, -1, 5, "both")]
    with pytest.raises(UserError, match="both"):
        ServerComputed(Slots("domain"), total).check(mixed)
    ServerComputed(Slots("client"), total).check([Client(0, 0, 5)])
