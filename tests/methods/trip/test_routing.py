import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from fedvlp.methods.trip.clustering import capacity_kmeans, cluster_capacities
from fedvlp.methods.trip.hashing import random_start
from fedvlp.methods.trip.routers import load_balance
from fedvlp.methods.trip.routing import expert_shares, key_start, make_keys, match_clusters
from fedvlp.utils.errors import UserError
from tests.helpers.trip import scene, sequential_kmeans


def orthogonal_keys(num_experts, width, seed):
    return make_keys("orthogonal", num_experts, width, seed)


def routing_weights(tokens, keys, capacity, start):
    return expert_shares(capacity_kmeans(tokens, start, cluster_capacities(tokens.shape[1], len(keys), capacity)), keys)


def slow_routing(tokens, keys, capacity, start):
    """Compute one image's routing weights step by step."""
    centroids, sizes, _ = sequential_kmeans(tokens, start, cluster_capacities(len(tokens), len(keys), capacity))
    cosines = (centroids @ keys.T) / np.outer(np.linalg.norm(centroids, axis=1), np.linalg.norm(keys, axis=1))
    _, experts = linear_sum_assignment(1 - cosines)
    weights = np.zeros(len(keys))
    weights[experts] = sizes / sizes.sum()
    return weights


@pytest.mark.parametrize(("num_experts", "capacity"), [(2, None), (4, 1.0), (8, 2.0)])
def test_weights_match_the_steps_one_by_one(capacity, num_experts):
    tokens, _ = scene(batch=12, seed=num_experts)
    keys = orthogonal_keys(num_experts, tokens.shape[2], seed=0)
    start = random_start(torch.arange(12), tokens.shape[1], num_experts)
    weights = routing_weights(tokens, keys, capacity, start)
    for image in range(12):
        expected = slow_routing(tokens[image].double().numpy(), keys.double().numpy(), capacity, start[image].numpy())
        np.testing.assert_allclose(weights[image].numpy(), expected, atol=1e-6)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(12))


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


def test_keys_are_orthonormal():
    keys = orthogonal_keys(4, 768, seed=5)
    torch.testing.assert_close(keys @ keys.T, torch.eye(4), atol=1e-6, rtol=0)
    with pytest.raises(UserError, match="orthogonal"):
        orthogonal_keys(9, 8, seed=0)


def test_key_start_takes_the_nearest_free_token():
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


def test_keys_do_not_use_the_global_generator():
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    kinds = ("orthogonal", "uniform", "normal", "binary")
    keys = {kind: make_keys(kind, 200, 300, seed=3) for kind in kinds}
    assert torch.equal(torch.rand(2), expected)
    assert keys["uniform"].min() >= 0
    assert keys["uniform"].max() <= 1
    assert keys["uniform"].mean().item() == pytest.approx(0.5, abs=0.01)
    assert keys["normal"].mean().item() == pytest.approx(0, abs=0.02)
    assert keys["normal"].std().item() == pytest.approx(1, abs=0.02)
    assert keys["binary"].unique().tolist() == [0, 1]
    assert keys["binary"].mean().item() == pytest.approx(0.5, abs=0.01)
    for kind in kinds:
        assert torch.equal(make_keys(kind, 200, 300, seed=3), keys[kind])
        assert not torch.equal(make_keys(kind, 200, 300, seed=4), keys[kind])


def test_the_balance_loss_matches_its_definition():
    probabilities = torch.randn(30, 3, generator=torch.Generator().manual_seed(0)).softmax(1).requires_grad_()
    chosen = [max(range(3), key=lambda m, row=row: row[m]) for row in probabilities.tolist()]
    fractions = [chosen.count(m) / 30 for m in range(3)]
    means = [sum(row[m] for row in probabilities.tolist()) / 30 for m in range(3)]
    loss = load_balance(probabilities)
    assert loss.item() == pytest.approx(3 * sum(f * p for f, p in zip(fractions, means, strict=True)))
    (gradient,) = torch.autograd.grad(loss, probabilities)
    torch.testing.assert_close(gradient, 3 * torch.tensor(fractions).expand(30, 3) / 30)
