from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from fedvlp.errors import UserError
from fedvlp.ops import (
    cluster_capacities,
    image_seeds,
    key_start,
    match_clusters,
    orthogonal_keys,
    random_start,
    routing_weights,
)


def slow_routing(sequential_kmeans, tokens, keys, capacity, start):
    """The routing weights of one image, step by step."""
    centroids, sizes, _ = sequential_kmeans(tokens, start, cluster_capacities(len(tokens), len(keys), capacity))
    cosines = (centroids @ keys.T) / np.outer(np.linalg.norm(centroids, axis=1), np.linalg.norm(keys, axis=1))
    _, experts = linear_sum_assignment(1 - cosines)
    weights = np.zeros(len(keys))
    weights[experts] = sizes / sizes.sum()
    return weights


@pytest.mark.parametrize("capacity", [1.0, 2.0, None])
@pytest.mark.parametrize("num_experts", [2, 4, 8])
def test_equals_the_steps_one_by_one(scene, sequential_kmeans, capacity, num_experts):
    tokens, _ = scene(batch=12, seed=num_experts)
    keys = orthogonal_keys(num_experts, tokens.shape[2], seed=0)
    start = random_start(torch.arange(12), tokens.shape[1], num_experts)
    weights = routing_weights(tokens, keys, capacity, start)
    for image in range(12):
        expected = slow_routing(
            sequential_kmeans, tokens[image].double().numpy(), keys.double().numpy(), capacity, start[image].numpy()
        )
        np.testing.assert_allclose(weights[image].numpy(), expected, atol=1e-6)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(12))


def test_an_image_is_routed_alike_alone_and_in_any_batch(scene):
    tokens, _ = scene(batch=9, num_tokens=197, width=64, seed=1)
    images = torch.randn(9, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    keys = orthogonal_keys(4, 64, seed=0)

    def route(chosen):
        start = random_start(image_seeds(images[chosen]), 197, 4, seed=3)
        return routing_weights(tokens[chosen], keys, 1.0, start)

    together = route(torch.arange(9))
    order = torch.tensor([4, 0, 8, 2])
    assert torch.equal(route(order), together[order])
    for image in range(9):
        assert torch.equal(route(torch.tensor([image])), together[image : image + 1])


def test_permuted_keys_permute_the_weights(scene):
    tokens, start = scene(seed=2)
    keys, order = orthogonal_keys(4, 24, seed=0), torch.tensor([2, 0, 3, 1])
    weights = routing_weights(tokens, keys, 1.0, start)
    torch.testing.assert_close(routing_weights(tokens, keys[order], 1.0, start), weights[:, order])


@pytest.mark.parametrize("num_experts", [1, 2, 4, 6, 9])
def test_matching_is_optimal(num_experts):
    generator = torch.Generator().manual_seed(num_experts)
    centroids = torch.randn(20, num_experts, 12, generator=generator)
    keys = orthogonal_keys(num_experts, 12, seed=1)
    experts = match_clusters(centroids, keys)
    for image in range(20):
        cosines = torch.nn.functional.normalize(centroids[image].double(), dim=-1) @ keys.double().T
        rows, columns = linear_sum_assignment(-cosines.numpy())
        assert experts[image].tolist() == columns.tolist()
        assert sorted(experts[image].tolist()) == rows.tolist()


def test_matching_needs_as_many_keys_as_clusters():
    with pytest.raises(UserError, match="3 clusters"):
        match_clusters(torch.randn(2, 3, 8), orthogonal_keys(4, 8, seed=0))


def test_keys_are_orthonormal_and_their_own():
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    keys = orthogonal_keys(4, 768, seed=5)
    assert torch.equal(torch.rand(2), expected)
    torch.testing.assert_close(keys @ keys.T, torch.eye(4), atol=1e-6, rtol=0)
    assert torch.equal(keys, orthogonal_keys(4, 768, seed=5))
    assert not torch.equal(keys, orthogonal_keys(4, 768, seed=6))
    with pytest.raises(UserError, match="orthogonal"):
        orthogonal_keys(9, 8, seed=0)


def test_key_start_takes_the_nearest_token_that_is_left(scene):
    tokens, _ = scene(batch=5, seed=4)
    keys = orthogonal_keys(6, 24, seed=0)
    start = key_start(tokens, keys)
    for image in range(5):
        cosines = torch.nn.functional.normalize(tokens[image].double(), dim=-1) @ keys.double().T
        free = set(range(50))
        for cluster in range(6):
            best = max(sorted(free), key=lambda token, at=cluster: round(float(cosines[token, at]), 9))
            assert int(start[image, cluster]) == best
            free.remove(best)
