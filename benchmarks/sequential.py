"""TRIP's routing of one image, token after token, as the reference for batched routing."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import normalize


def sequential_routing(tokens: Tensor, start: Tensor, capacities: list[int], keys: Tensor) -> Tensor:
    """Compute the routing weights of one image, with a Python loop over its tokens in each iteration.

    Args:
        tokens: The image's tokens [P, W].
        start: Indices of the tokens that the centroids start at.
        capacities: Largest number of tokens of each cluster.
        keys: The experts' keys [M, W].
    """
    tokens = tokens.double()
    limits = torch.tensor(capacities)
    centroids = tokens[start]
    multipliers = torch.zeros(len(capacities), dtype=torch.float64)
    for _ in range(100):
        distances = torch.cdist(tokens, centroids, compute_mode="donot_use_mm_for_euclid_dist")
        assignment, sizes = _assign(distances + multipliers, limits)
        multipliers = multipliers + 1e-4 * (sizes - limits)
        multipliers[sizes == 0] = 0.0
        moved = _means(tokens, assignment, distances)
        if (moved - centroids).norm(dim=1).mean() < 1e-4:
            break
        centroids = moved
    similarities = normalize(centroids, dim=1) @ normalize(keys.double(), dim=1).T
    _, experts = linear_sum_assignment(-similarities.numpy())
    weights = torch.zeros(len(capacities))
    weights[torch.from_numpy(experts)] = (sizes / sizes.sum()).float()
    return weights


def _means(tokens: Tensor, assignment: Tensor, distances: Tensor) -> Tensor:
    """Compute the means of the clusters' tokens [M, W].

    An empty cluster starts again at the token that is farthest from all centroids.

    Args:
        tokens: The image's tokens [P, W].
        assignment: Each token's cluster [P], -1 for none.
        distances: Distances of tokens to centroids [P, M].
    """
    means = []
    for cluster in range(distances.shape[1]):
        members = tokens[assignment == cluster]
        means.append(members.mean(dim=0) if len(members) else tokens[distances.amin(dim=1).argmax()])
    return torch.stack(means)


def _assign(costs: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    """Assign tokens to clusters and count them: the cheapest token first, each to its cheapest cluster with space."""
    lowest, claimed = costs.min(dim=1)
    order = lowest.argsort(stable=True)
    assignment = torch.full((len(costs),), -1)
    room = limits.clone()
    for place in range(len(order)):
        token = order[place]
        cluster = claimed[token]
        if room[cluster] > 0:
            assignment[token] = cluster
            room[cluster] -= 1
    return assignment, limits - room
