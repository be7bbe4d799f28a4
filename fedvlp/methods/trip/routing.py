"""Parameter-free routing: from an image's tokens to the weights of the prompt experts (TRIP, Sec. IV-A and IV-B)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedvlp.methods.trip.clustering import Clusters, capacity_kmeans, cluster_capacities
from fedvlp.utils.errors import UserError

KeyInit = Literal["orthogonal", "uniform", "normal", "binary"]

_LARGEST_ENUMERATED = 6
"""More experts than this have too many orders to try all of them."""

_LARGEST_EXPORTED = 12
"""Two to the power of this is the number of subsets that an exported assignment goes through."""


def make_keys(kind: KeyInit, num_experts: int, width: int, seed: int) -> Float[Tensor, "E W"]:
    """Returns the keys v_m, drawn from a generator of their own (TRIP, Table VI).

    Args:
        kind: `orthogonal` for orthonormal rows; `uniform` for elements in [0, 1), `normal` for those of N(0, 1),
            `binary` for those of {0, 1}.
        num_experts: M, the number of keys.
        width: Width of what is routed.
        seed: Seed of the generator.

    Raises:
        UserError: If there are more orthogonal keys than dimensions, or the kind is unknown.
    """
    generator = torch.Generator().manual_seed(seed)
    if kind == "orthogonal":
        return orthogonal_keys(num_experts, width, seed)
    if kind == "uniform":
        return torch.rand(num_experts, width, generator=generator)
    if kind == "normal":
        return torch.randn(num_experts, width, generator=generator)
    if kind == "binary":
        return torch.randint(2, (num_experts, width), generator=generator).float()
    raise UserError(f"Expected keys that are orthogonal, uniform, normal or binary; got {kind!r}.")


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
        UserError: If there are not as many keys as clusters, or a method with more than 12 experts is exported.
    """
    if centroids.shape[1] != len(keys):
        raise UserError(
            f"{centroids.shape[1]} clusters need as many keys, but there are {len(keys)}. "
            "Give one key for each cluster."
        )
    costs = 1 - F.normalize(centroids.double(), dim=-1) @ F.normalize(keys.double(), dim=-1).T  # [B, M, E]
    if len(keys) > _LARGEST_ENUMERATED:
        if torch.compiler.is_exporting():
            return cheapest_assignment(costs)
        matched = np.stack([linear_sum_assignment(cost)[1] for cost in costs.cpu().numpy()])
        return torch.from_numpy(matched).to(costs.device)
    # Few experts have few orders: all of them, for all images at once. Totals that differ by rounding alone are equal.
    orders = torch.tensor(list(permutations(range(len(keys)))), device=costs.device)  # [orders, M]
    totals = costs[:, torch.arange(len(keys), device=costs.device), orders].sum(dim=2).round(decimals=12)
    return orders[totals.argmin(dim=1)]


def routing_weights(
    tokens: Float[Tensor, "B P W"],
    keys: Float[Tensor, "M W"],
    capacity: float | None,
    start: Int[Tensor, "B M"],
) -> Float[Tensor, "B M"]:
    """Returns pi, for each expert the share of the image's kept tokens that its cluster holds (Eq. 8); rows sum to 1.

    Args:
        tokens: Each image's tokens, CLS included.
        keys: v_m, one for each expert.
        capacity: alpha > 0, or None for clusters without a limit.
        start: Distinct indices of the tokens that the centroids start at, as from `random_start` or `key_start`.
    """
    (clusters,) = token_clusters(tokens, len(keys), [capacity], start)
    return expert_shares(clusters, keys)


def token_clusters(
    tokens: Float[Tensor, "B P W"],
    num_clusters: int,
    capacities: Sequence[float | None],
    start: Int[Tensor, "B M"],
) -> list[Clusters]:
    """Returns the clusters of each image's tokens for each capacity factor; arguments as in `routing_weights`."""
    limits = [cluster_capacities(tokens.shape[1], num_clusters, capacity) for capacity in capacities]
    return [capacity_kmeans(tokens, start, each) for each in limits]


def expert_shares(clusters: Clusters, keys: Float[Tensor, "M W"]) -> Float[Tensor, "B M"]:
    """Returns pi, the share of the kept tokens that lie in the cluster matched to each expert's key (Eq. 8)."""
    shares = cluster_shares(clusters)
    return torch.zeros_like(shares).scatter_(1, match_clusters(clusters.centroids, keys), shares)


def cluster_shares(clusters: Clusters) -> Float[Tensor, "B M"]:
    """Returns the share of the kept tokens that lie in each cluster; rows sum to 1."""
    sizes = clusters.sizes.float()
    return sizes / sizes.sum(dim=1, keepdim=True)


def image_routing_weights(
    features: Float[Tensor, "B d"],
    keys: Float[Tensor, "E d"],
    capacity: float | None,
    start: Int[Tensor, "M"],
) -> Float[Tensor, "B E"]:
    """Returns the one expert of each image of a batch, with weight 1: that of its cluster (TRIP, Sec. V-F).

    The images are clustered among themselves, and clusters are matched with keys one to one. An image that found no
    room in its cluster gets all experts alike. A batch of fewer images than experts has a cluster for each image, so
    an image alone goes to the expert with the nearest key.

    Args:
        features: f(x), the global feature of each image.
        keys: v_m, one for each expert.
        capacity: alpha > 0, a cluster holds at most alpha B / M of B images, but one at least; None for no limit.
        start: Distinct indices of the M images that the centroids start at, M at most the number of experts.
    """
    share = len(features) // len(start)
    if capacity is not None:
        capacity = max(capacity, 1 / share)  # room for one image at least
    limits = cluster_capacities(len(features), len(start), capacity)
    clusters = capacity_kmeans(features[None], start[None], limits)
    costs = 1 - F.normalize(clusters.centroids[0].double(), dim=-1) @ F.normalize(keys.double(), dim=-1).T
    matched = torch.from_numpy(linear_sum_assignment(costs.cpu().numpy())[1]).to(features.device)
    clustered = clusters.assignment[0]
    weights = F.one_hot(matched[clustered.clamp(min=0)], len(keys)).float()  # [B, E]
    return weights.masked_fill((clustered < 0)[:, None], 1 / len(keys))


def cheapest_assignment(costs: Float[Tensor, "B M E"]) -> Int[Tensor, "B M"]:
    """Returns the expert of each cluster, all different, such that the costs' total is least.

    By dynamic programming over subsets of experts, in tensors alone, which can be exported.

    Args:
        costs: of each cluster with each of as many experts.

    Raises:
        UserError: If there are more than 12 experts.

    Example:
        >>> cheapest_assignment(torch.tensor([[[1.0, 2.0, 9.0], [0.0, 5.0, 9.0], [4.0, 1.0, 3.0]]])).tolist()
        [[1, 0, 2]]
    """
    count = costs.shape[2]
    if count > _LARGEST_EXPORTED:
        raise UserError(
            f"Routes of {count} experts are matched outside of tensors; at most {_LARGEST_EXPORTED} can be exported."
        )
    experts = torch.arange(count)
    subsets = torch.arange(2**count)
    holds = (subsets[:, None] >> experts) & 1 == 1  # [subsets, E]
    without = (subsets[:, None] - 2**experts).clamp(min=0)
    total = torch.where(subsets == 0, 0.0, torch.inf).to(costs.dtype).expand(costs.shape[0], -1)  # of no clusters
    choices = []
    for cluster in range(count):
        with_last = (total[:, without] + costs[:, cluster, None]).masked_fill(~holds, torch.inf)  # [B, subsets, E]
        total, choice = with_last.min(dim=2)
        choices.append(choice)
    left = torch.full_like(choices[0][:, :1], 2**count - 1)  # [B, 1]
    matched: list[Tensor] = []
    for choice in reversed(choices):
        chosen = choice.gather(1, left)
        matched.insert(0, chosen)
        left = left - (2**experts)[chosen]
    return torch.cat(matched, dim=1)
