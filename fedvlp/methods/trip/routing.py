"""Parameter-free routing: from clusters to the weights of the prompt experts (TRIP, Sec. IV-A and IV-B)."""

from itertools import permutations
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedvlp.methods.trip.clustering import Clusters
from fedvlp.utils.errors import UserError

KeyInit = Literal["orthogonal", "uniform", "normal", "binary"]

LARGEST_ENUMERATED = 6
"""Maximum number of experts to match by trying all permutations; above it, one image at a time is faster."""


def make_keys(kind: KeyInit, num_experts: int, width: int, seed: int) -> Float[Tensor, "E W"]:
    """Draw the keys v_m from a separate generator (TRIP, Table VI).

    Args:
        kind: `orthogonal` for orthonormal rows; `uniform`, `normal` or `binary` for elements drawn from [0, 1), N(0, 1)
            or {0, 1}.
        num_experts: M, the number of keys.
        width: Width of the tokens.
        seed: Seed of the generator.
    """
    generator = torch.Generator().manual_seed(seed)
    if kind == "orthogonal":
        if num_experts > width:
            raise UserError(
                f"Expected at most {width} experts, since keys of width {width} are orthogonal; got {num_experts}."
            )
        return torch.nn.init.orthogonal_(torch.empty(num_experts, width), generator=generator)
    if kind == "uniform":
        return torch.rand(num_experts, width, generator=generator)
    if kind == "normal":
        return torch.randn(num_experts, width, generator=generator)
    if kind == "binary":
        return torch.randint(2, (num_experts, width), generator=generator).float()
    raise UserError(f"Expected orthogonal, uniform, normal or binary keys; got {kind!r}.")


def key_start(tokens: Float[Tensor, "B P W"], keys: Float[Tensor, "M W"]) -> Int[Tensor, "B M"]:
    """Find, for each key in turn, the index of the nearest token by cosine that no earlier key took."""
    # Rounded, in double precision, so that ties between equal tokens do not depend on the batch or the processor.
    similarities = F.normalize(keys.double(), dim=-1) @ F.normalize(tokens.double(), dim=-1).transpose(1, 2)
    similarities = similarities.round(decimals=9)  # [B, M, P]
    chosen: list[Tensor] = []
    for cluster in range(len(keys)):
        chosen.append(similarities[:, cluster].argmax(dim=1))
        # The token is taken: no later key may choose it.
        similarities.scatter_(2, chosen[-1][:, None, None].expand(-1, len(keys), 1), -torch.inf)
    return torch.stack(chosen, dim=1)


def match_clusters(centroids: Float[Tensor, "B M W"], keys: Float[Tensor, "M W"]) -> Int[Tensor, "B M"]:
    """Assign clusters to experts one to one, with the smallest total of 1 - cos(mu_i, v_j) (Eqs. 5 to 7)."""
    costs = 1 - F.normalize(centroids.double(), dim=-1) @ F.normalize(keys.double(), dim=-1).T  # [B, M, E]
    if len(keys) > LARGEST_ENUMERATED:
        return cheapest_assignment(costs)
    # Few experts have few permutations, so all are tried for all images at once. Rounding makes equal totals equal.
    orders = torch.tensor(list(permutations(range(len(keys)))), device=costs.device)  # [orders, M]
    totals = costs[:, torch.arange(len(keys), device=costs.device), orders].sum(dim=2).round(decimals=12)
    return orders[totals.argmin(dim=1)]


def expert_shares(clusters: Clusters, keys: Float[Tensor, "M W"]) -> Float[Tensor, "B M"]:
    """Compute pi: the share of the kept tokens in the cluster matched to each expert's key (Eq. 8)."""
    shares = cluster_shares(clusters)
    return torch.zeros_like(shares).scatter_(1, match_clusters(clusters.centroids, keys), shares)


def cluster_shares(clusters: Clusters) -> Float[Tensor, "B M"]:
    """Compute the share of the kept tokens in each cluster; rows sum to 1."""
    sizes = clusters.sizes.float()
    return sizes / sizes.sum(dim=1, keepdim=True)


def cheapest_assignment(costs: Float[Tensor, "B M E"]) -> Int[Tensor, "B M"]:
    """Find the one-to-one assignment of clusters to experts with the smallest total cost, image by image."""
    matched = np.stack([linear_sum_assignment(cost)[1] for cost in costs.cpu().numpy()])
    return torch.from_numpy(matched).to(costs.device)
