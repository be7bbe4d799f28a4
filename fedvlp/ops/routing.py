"""Parameter-free routing: from an image's tokens to the weights of the prompt experts (TRIP, Sec. IV-A and IV-B)."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedvlp.errors import UserError
from fedvlp.ops.clustering import capacity_kmeans, cluster_capacities
from fedvlp.ops.lloyd import equal_means

_LARGEST_ENUMERATED = 6
_DOUBTFUL_ADVANTAGE = 1e-4
"""Total costs nearer than this are compared in double precision, so that no route hangs on a batch's rounding."""


def orthogonal_keys(num_experts: int, width: int, seed: int) -> Float[Tensor, "E W"]:
    """Returns the keys v_m, orthonormal rows drawn from a generator of their own.

    Raises:
        UserError: If there are more experts than dimensions.
    """
    if num_experts > width:
        raise UserError(
            f"At most {width} keys of width {width} are orthogonal, but {num_experts} experts ask for one each."
        )
    generator = torch.Generator().manual_seed(seed)
    keys = torch.empty(num_experts, width)
    return torch.nn.init.orthogonal_(keys, generator=generator)


def key_start(tokens: Float[Tensor, "B P W"], keys: Float[Tensor, "M W"]) -> Int[Tensor, "B M"]:
    """Returns, for each key in turn, the index of the nearest token by cosine that no earlier key took."""
    similarities = F.normalize(keys.double(), dim=-1) @ F.normalize(tokens.double(), dim=-1).transpose(1, 2)
    similarities = similarities.round(decimals=9)  # [B, M, P]
    chosen: list[Tensor] = []
    for cluster in range(len(keys)):
        chosen.append(similarities[:, cluster].argmax(dim=1))
        similarities.scatter_(2, chosen[-1][:, None, None].expand(-1, len(keys), 1), -torch.inf)
    return torch.stack(chosen, dim=1)


def match_clusters(centroids: Float[Tensor, "B M W"], keys: Float[Tensor, "M W"]) -> Int[Tensor, "B M"]:
    """Returns the expert of each cluster: the one-to-one assignment of least total 1 - cos(mu_i, v_j) (Eqs. 5 to 7).

    Raises:
        UserError: If there are not as many keys as clusters.
    """
    if centroids.shape[1] != len(keys):
        raise UserError(
            f"{centroids.shape[1]} clusters need as many keys, but there are {len(keys)}. "
            "Give one key for each cluster."
        )
    return _match(centroids, keys)[0]


def routing_weights(
    tokens: Float[Tensor, "B P W"],
    keys: Float[Tensor, "M W"],
    capacity: float | None,
    start: Int[Tensor, "B M"],
    products: Float[Tensor, "B P P"] | None = None,
) -> Float[Tensor, "B M"]:
    """Returns pi, for each expert the share of the image's kept tokens that its cluster holds (Eq. 8); rows sum to 1.

    Args:
        tokens: Each image's tokens, CLS included.
        keys: v_m, one for each expert.
        capacity: alpha > 0, or None for clusters without a limit.
        start: Distinct indices of the tokens that the centroids start at, as from `random_start` or `key_start`.
        products: `token_products(tokens)`, where the same tokens are routed with several capacities.
    """
    capacities = cluster_capacities(tokens.shape[1], len(keys), capacity)
    clusters = capacity_kmeans(tokens, start, capacities, products=products)
    experts, advantage = _match(clusters.centroids, keys)
    doubtful = advantage < _DOUBTFUL_ADVANTAGE
    if bool(doubtful.any()):
        centroids = equal_means(clusters.weights[doubtful]) @ tokens[doubtful].double()
        experts[doubtful] = _match(centroids, keys)[0]
    sizes = clusters.sizes.float()
    shares = sizes / sizes.sum(dim=1, keepdim=True)
    return torch.zeros_like(shares).scatter_(1, experts, shares)


def _match(centroids: Tensor, keys: Tensor) -> tuple[Int[Tensor, "B M"], Float[Tensor, "B"]]:
    """Returns the best assignment and by how much it is cheaper than the second best, 0 where that is not known."""
    costs = 1 - F.normalize(centroids.double(), dim=-1) @ F.normalize(keys.double(), dim=-1).T  # [B, M, E]
    if len(keys) > _LARGEST_ENUMERATED:
        matched = np.stack([linear_sum_assignment(cost)[1] for cost in costs.cpu().numpy()])
        return torch.from_numpy(matched).to(costs.device), torch.zeros(len(costs), device=costs.device)
    orders = torch.tensor(list(permutations(range(len(keys)))), device=costs.device)  # [orders, M]
    totals = costs[:, torch.arange(len(keys), device=costs.device), orders].sum(dim=2).round(decimals=12)
    lowest, best = totals.min(dim=1)
    runner_up = totals.scatter(1, best[:, None], torch.inf).amin(dim=1)
    return orders[best], runner_up - lowest
