"""What of TRIP's routing can be exported, and what is refused."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from fedvlp.methods.trip.hashing import float_bits
from fedvlp.methods.trip.routing import cheapest_assignment
from fedvlp.methods.trip.trip import TRIP
from fedvlp.utils.errors import UserError
from tests.helpers.exporting import take_the_exported_way


def test_bits_of_all_kinds_of_numbers():
    values = torch.randint(-(2**31), 2**31, (20_000,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    values = values.view(torch.float32)
    powers = torch.exp2(torch.arange(-149, 128).double()).float()
    below = torch.nextafter(powers, torch.tensor(0.0))
    every = torch.cat([values[values.isfinite()], powers, -powers, below, -below, torch.tensor([0.0, -0.0])])
    assert torch.equal(float_bits(every), every.view(torch.int32).long())


def test_a_route_that_depends_on_the_batch_is_not_exported(clip, monkeypatch):
    take_the_exported_way(monkeypatch)
    module = TRIP(["a", "b", "c"], clip, templates=1, routing="image")
    with pytest.raises(UserError, match="others of its batch"):
        module(torch.zeros(2, 3, 64, 64))


def test_the_cheapest_assignment_is_that_of_scipy():
    costs = torch.rand(20, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assigned = cheapest_assignment(costs)
    for image in range(20):
        assert assigned[image].tolist() == linear_sum_assignment(costs[image].numpy())[1].tolist()
    with pytest.raises(UserError, match="at most 12"):
        cheapest_assignment(torch.zeros(1, 13, 13))
