"""What TRIP's routing does where it is exported is what it does otherwise."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from fedvlp.methods.trip.clustering import capacity_kmeans, cluster_capacities
from fedvlp.methods.trip.hashing import float_bits
from fedvlp.methods.trip.subset_assignment import cheapest_assignment
from fedvlp.methods.trip.trip import TRIP
from fedvlp.utils.errors import UserError
from tests.helpers.exporting import take_the_exported_way


@pytest.mark.parametrize("capacity", [0.5, 1.0, 2.0, None])
@pytest.mark.parametrize("seed", range(2))
def test_plain_clusters_are_those_of_the_fast_algorithm(scene, monkeypatch, capacity, seed):
    tokens, start = scene(seed=seed, scale=[0.3, 3.0][seed])
    capacities = cluster_capacities(50, 4, capacity)
    fast = [capacity_kmeans(tokens, start, capacities, iterations) for iterations in (3, 100)]
    take_the_exported_way(monkeypatch)
    for found, iterations in zip(fast, (3, 100), strict=True):
        plain = capacity_kmeans(tokens, start, capacities, iterations)
        assert torch.equal(plain.kept, found.kept)
        torch.testing.assert_close(plain.centroids.float(), found.centroids, atol=1e-5, rtol=0)


def test_plain_clusters_of_equal_tokens_begin_anew_alike(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(3, 8, generator=generator)[torch.randint(3, (4, 30), generator=generator)]
    start = torch.arange(6).expand(4, 6)
    fast = capacity_kmeans(tokens, start, cluster_capacities(30, 6, 1.0))
    take_the_exported_way(monkeypatch)
    assert torch.equal(capacity_kmeans(tokens, start, cluster_capacities(30, 6, 1.0)).kept, fast.kept)


def test_the_cheapest_assignment_is_that_of_scipy():
    costs = torch.rand(20, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = cheapest_assignment(costs)
    for image in range(20):
        assert found[image].tolist() == linear_sum_assignment(costs[image].numpy())[1].tolist()
    with pytest.raises(UserError, match="at most 12"):
        cheapest_assignment(torch.zeros(1, 13, 13))


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
