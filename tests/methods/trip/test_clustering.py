import numpy as np
import pytest
import torch

from fedvlp.methods.trip.clustering import assign_with_capacity, capacity_kmeans, cluster_capacities
from fedvlp.utils.errors import UserError
from tests.helpers.trip import scene, sequential_kmeans


def replaced_assignment(costs, limits):
    """Follow the paper: tokens arrive by index, and a full cluster replaces its worst token by a cheaper one."""
    members = [[] for _ in limits]
    for token, row in enumerate(costs):
        cluster = int(np.argmin(row))
        members[cluster].append(token)
        if len(members[cluster]) > limits[cluster]:
            members[cluster].remove(max(members[cluster], key=lambda other, at=cluster: costs[other][at]))
    return members


@pytest.mark.parametrize(("seed", "capacity"), [(0, 0.5), (1, 1.0), (2, 2.0), (3, None)])
def test_it_equals_the_sequential_algorithm(capacity, seed):
    tokens, start = scene(seed=seed, scale=[0.3, 1.0, 3.0, 10.0][seed])
    capacities = cluster_capacities(50, 4, capacity)
    clusters = capacity_kmeans(tokens, start, capacities)
    for image in range(len(tokens)):
        centroids, sizes, assignment = sequential_kmeans(tokens[image].numpy(), start[image].numpy(), capacities)
        assert clusters.assignment[image].tolist() == assignment.tolist()
        assert clusters.sizes[image].tolist() == sizes.tolist()
        np.testing.assert_allclose(clusters.centroids[image].numpy(), centroids, atol=1e-5)


def test_clusters_do_not_depend_on_the_batch():
    tokens, start = scene(batch=9, seed=3)
    capacities = cluster_capacities(50, 4, 1.0)
    together = capacity_kmeans(tokens, start, capacities)
    backwards = capacity_kmeans(tokens.flip(0), start.flip(0), capacities)
    assert torch.equal(together.assignment, backwards.assignment.flip(0))
    for image in range(9):
        single = capacity_kmeans(tokens[image : image + 1], start[image : image + 1], capacities)
        assert torch.equal(single.assignment[0], together.assignment[image])
        assert torch.equal(single.centroids[0], together.centroids[image])


def test_equal_tokens_and_empty_clusters_match_the_sequential_algorithm():
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randn(3, 8, generator=generator)
    tokens = kinds[torch.randint(3, (4, 30), generator=generator)]
    start = torch.arange(6).expand(4, 6)
    capacities = cluster_capacities(30, 6, 1.0)
    clusters = capacity_kmeans(tokens, start, capacities)
    for image in range(4):
        _, sizes, assignment = sequential_kmeans(tokens[image].numpy(), start[image].numpy(), capacities)
        assert clusters.sizes[image].tolist() == sizes.tolist()
        assert clusters.assignment[image].tolist() == assignment.tolist()


def test_keeping_the_cheapest_tokens_equals_token_replacement():
    costs = torch.rand(3, 4, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    limits = torch.tensor([5, 3, 20, 1])
    assigned = assign_with_capacity(costs, limits.expand(3, 4))
    for image in range(3):
        members = replaced_assignment(costs[image].T.numpy(), limits.tolist())
        for cluster in range(4):
            assert assigned[image, cluster].nonzero().flatten().tolist() == sorted(members[cluster])


@pytest.mark.parametrize(
    ("num_tokens", "num_clusters", "capacity", "expected"),
    [
        (197, 2, 1.0, [99, 98]),
        (197, 8, 1.0, [25, 25, 25, 25, 25, 24, 24, 24]),
        (199, 4, 0.5, [25, 25, 25, 24]),  # 49 halved is cut to 24
        (23, 3, 0.7, [5, 5, 4]),  # 4.9 is cut to 4
        (7, 3, None, [7, 7, 7]),
    ],
)
def test_capacities_are_rounded_like_in_the_paper(num_tokens, num_clusters, capacity, expected):
    assert cluster_capacities(num_tokens, num_clusters, capacity) == expected


@pytest.mark.parametrize("arguments", [(3, 4, 1.0), (10, 4, 0.1), (10, 4, -1.0), (10, 0, 1.0)])
def test_impossible_capacities_are_rejected(arguments):
    with pytest.raises(UserError):
        cluster_capacities(*arguments)
