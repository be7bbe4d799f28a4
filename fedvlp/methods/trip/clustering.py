"""k-means with capacities over the tokens of each image, for whole batches of images (TRIP, Sec. IV-A).

Everything is computed in double precision, and distances are rounded to 1e-9, so that ties between equal tokens do not
depend on the batch or the processor. Centroids are means of tokens, so all distances follow from scalar products.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class Clusters:
    """The clusters of each image's tokens. A token dropped by a full cluster is in no cluster."""

    centroids: Float[Tensor, "B M W"]  # means mu_m, in double precision
    kept: Bool[Tensor, "B M P"]  # the tokens of each cluster

    @property
    def sizes(self) -> Int[Tensor, "B M"]:
        """Number of tokens kept in each cluster."""
        return self.kept.sum(dim=2)

    @property
    def assignment(self) -> Int[Tensor, "B P"]:
        """Cluster of each token; -1 for a dropped token."""
        return torch.where(self.kept.any(dim=1), self.kept.int().argmax(dim=1), -1)

    def matched_to(self, experts: Int[Tensor, "B M"]) -> Int[Tensor, "B P"]:
        """Find the expert of each token, given the expert of each cluster; -1 for a dropped token."""
        clustered = self.assignment
        return experts.gather(1, clustered.clamp(min=0)).masked_fill(clustered < 0, -1)


def cluster_capacities(num_tokens: int, num_clusters: int, capacity: float | None) -> list[int]:
    """Compute s_m, the maximum number of tokens in each cluster: alpha P / M in whole tokens.

    Each cluster gets floor(alpha floor(P / M)) tokens; the first P mod M clusters get one more.

    Args:
        num_tokens: Number of tokens P.
        num_clusters: Number of clusters M.
        capacity: Factor alpha > 0; 1.0 if all clusters together hold exactly P tokens, None for no limit.

    >>> cluster_capacities(197, 4, 1.0), cluster_capacities(197, 4, 2.0), cluster_capacities(5, 2, None)
    ([50, 49, 49, 49], [99, 98, 98, 98], [5, 5])
    """
    if not 1 <= num_clusters <= num_tokens:
        raise UserError(
            f"Expected 1 to {num_tokens} experts, since each needs a cluster of the {num_tokens} image tokens; got "
            f"{num_clusters}. Use fewer experts or a CLIP with more image tokens."
        )
    if capacity is None:
        return [num_tokens] * num_clusters
    share, rest = divmod(num_tokens, num_clusters)
    if int(share * capacity) < 1:
        raise UserError(
            f"A capacity factor of {capacity} leaves no token in a cluster of {share}. "
            f"Use a capacity of at least {1 / share:.3g}, or null."
        )
    return [int(share * capacity) + (cluster < rest) for cluster in range(num_clusters)]


@torch.no_grad()
def capacity_kmeans(
    tokens: Float[Tensor, "B P W"], start: Int[Tensor, "B M"], capacities: Sequence[int], max_iterations: int = 100
) -> Clusters:
    """Cluster the tokens of each image separately under |C_m| <= s_m (TRIP, Eqs. 3 and 4).

    In each iteration, a token claims the cluster with the smallest `distance + theta_m`; the multiplier theta_m starts
    at 0. Each cluster keeps its s_m cheapest claimants, the lower index first if costs are equal; the paper's token
    replacement has the same result. Then theta_m changes by 1e-4 (size - s_m), and centroids move to the means of their
    tokens. An empty cluster restarts, with theta_m = 0, at the token farthest from its nearest centroid. An image's
    iterations stop once its centroids would move by less than 1e-4 on average; this last move is not made.

    Args:
        tokens: Each image's tokens.
        start: Distinct indices of the tokens used as initial centroids.
        capacities: Maximum cluster sizes s_m.
        max_iterations: Maximum number of iterations, at least 1.
    """
    exact = tokens.double()
    centred = exact - exact.mean(dim=1, keepdim=True)  # scalar products of smaller vectors are more exact
    products = centred @ centred.transpose(1, 2)  # [B, P, P]
    indices = torch.arange(tokens.shape[1], device=tokens.device)
    limits = torch.tensor(capacities, device=tokens.device).expand(start.shape)

    members = start[:, :, None] == indices  # [B, M, P]
    multipliers = torch.zeros(start.shape, dtype=torch.float64, device=tokens.device)
    running = torch.ones(start.shape[:1], dtype=torch.bool, device=tokens.device)
    first = Iteration(members, multipliers, torch.zeros_like(members), running)
    last = iterate(products, limits, first, max_iterations)
    # The loop used centred tokens; the centroids are means of the original tokens.
    return Clusters(mean_weights(last.members) @ exact, last.kept)


class Iteration(NamedTuple):
    """The state of the clustering of a batch of images."""

    members: Tensor  # the tokens averaged into each centroid, bool [B, M, P]
    multipliers: Tensor  # theta_m [B, M]
    kept: Tensor  # the tokens that each cluster keeps, bool [B, M, P]
    running: Tensor  # whether each image's centroids still move [B]


def iterate(products: Tensor, limits: Tensor, state: Iteration, max_iterations: int) -> Iteration:
    """Repeat the clustering's step until no image's centroids move."""
    for _ in range(max_iterations):
        if not state.running.any():
            break
        state = next_iteration(products, limits, state)
    return state


def next_iteration(products: Float[Tensor, "B P P"], limits: Int[Tensor, "B M"], state: Iteration) -> Iteration:
    """Assign tokens to clusters, and update multipliers and centroids; a converged image stays unchanged."""
    distances = distances_to_means(products, state.members)
    assigned = assign_with_capacity(distances + state.multipliers[:, :, None], limits)
    sizes = assigned.sum(dim=2)
    empty = sizes == 0
    # An empty cluster restarts at the token farthest from its nearest centroid.
    farthest = distances.amin(dim=1).argmax(dim=1)
    indices = torch.arange(products.shape[1], device=products.device)
    moved = assigned | (empty[:, :, None] & (farthest[:, None, None] == indices))
    # A cluster below its capacity becomes cheaper; an empty one restarts at 0.
    raised = (state.multipliers + 1e-4 * (sizes - limits)).masked_fill(empty, 0.0)
    # The squared shift is c^T K c, with scalar products K, so the loop computes no centroid.
    change = mean_weights(moved) - mean_weights(state.members)
    shift = ((change @ products) * change).sum(dim=2).clamp(min=0).sqrt().mean(dim=1)
    # A converged image keeps its centroids while other images' centroids still move.
    moves = state.running & (shift >= 1e-4)
    return Iteration(
        members=torch.where(moves[:, None, None], moved, state.members),
        multipliers=torch.where(moves[:, None], raised, state.multipliers),
        kept=torch.where(state.running[:, None, None], assigned, state.kept),
        running=moves,
    )


def assign_with_capacity(costs: Float[Tensor, "B M P"], limits: Int[Tensor, "B M"]) -> Bool[Tensor, "B M P"]:
    """Assign each token to its cheapest cluster, and keep the s_m (``limits``) cheapest tokens of each cluster.

    A tie between clusters goes to the first cluster, a tie between tokens to the lower index.
    """
    cost, cluster = costs.min(dim=1)  # [B, P]
    # The tokens that claim each cluster, before any is dropped.
    claimed = cluster[:, None] == torch.arange(limits.shape[1], device=costs.device)[:, None]  # [B, M, P]
    order = cost.argsort(dim=1, stable=True)[:, None].expand_as(claimed)
    ranks = claimed.gather(2, order).cumsum(dim=2)  # among the claimants of a cluster, from 1, cheapest first
    return claimed & (torch.empty_like(ranks).scatter_(2, order, ranks) <= limits[:, :, None])


def mean_weights(members: Bool[Tensor, "B M P"]) -> Float[Tensor, "B M P"]:
    """Compute the weights over tokens that average each cluster's members."""
    exact = members.double()
    return exact / exact.sum(dim=2, keepdim=True)


def distances_to_means(products: Float[Tensor, "B P P"], members: Bool[Tensor, "B M P"]) -> Float[Tensor, "B M P"]:
    """Compute the distances of tokens to means of tokens, rounded to 1e-9 so that ties are exact.

    ``products`` are the tokens' scalar products in double precision, ``members`` the tokens averaged into each mean.
    """
    weights = mean_weights(members)
    with_means = weights @ products  # [B, M, P]
    of_means = (with_means * weights).sum(dim=2, keepdim=True)
    squares = products.diagonal(dim1=1, dim2=2)[:, None] + of_means
    squared = squares - 2 * with_means
    # A value below the rounding error of these sums is a token at its mean.
    distances = squared.masked_fill(squared < 1e-12 * squares, 0.0).sqrt()
    return (distances * 1e9).round() / 1e9
