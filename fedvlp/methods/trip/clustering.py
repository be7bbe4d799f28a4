"""k-means with capacities over the tokens of each image, for whole batches of images (TRIP, Sec. IV-A).

All is in double precision, and distances are compared in steps of 1e-9, so that equal tokens stay equal whatever the
batch and the processor. Centroids are means of tokens, so all distances follow from the tokens' scalar products.
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
    """The clusters of each image's tokens.

    Args:
        centroids: mu_m, in double precision.
        kept: The tokens of each cluster; a token that was dropped because its cluster was full is in none.
    """

    centroids: Float[Tensor, "B M W"]
    kept: Bool[Tensor, "B M P"]

    @property
    def sizes(self) -> Int[Tensor, "B M"]:
        """Number of tokens kept in each cluster."""
        return self.kept.sum(dim=2)

    @property
    def assignment(self) -> Int[Tensor, "B P"]:
        """Cluster of each token; -1 for a token that was dropped."""
        return torch.where(self.kept.any(dim=1), self.kept.int().argmax(dim=1), -1)

    def matched_to(self, experts: Int[Tensor, "B M"]) -> Int[Tensor, "B P"]:
        """Return the expert of each token, from that of each cluster; -1 for a token that was dropped."""
        clustered = self.assignment
        return experts.gather(1, clustered.clamp(min=0)).masked_fill(clustered < 0, -1)


def cluster_capacities(num_tokens: int, num_clusters: int, capacity: float | None) -> list[int]:
    """Return s_m, the largest number of tokens that each cluster keeps: alpha P / M in whole tokens.

    Each gets the whole part of alpha times the whole part of P / M; the first P mod M clusters get one more.

    Args:
        num_tokens: P.
        num_clusters: M.
        capacity: alpha > 0, 1.0 when all clusters together hold exactly P tokens; None for no limit.

    >>> cluster_capacities(197, 4, 1.0), cluster_capacities(197, 4, 2.0), cluster_capacities(5, 2, None)
    ([50, 49, 49, 49], [99, 98, 98, 98], [5, 5])
    """
    if not 1 <= num_clusters <= num_tokens:
        raise UserError(
            f"{num_tokens} tokens make 1 to {num_tokens} clusters, one for each expert, but there are {num_clusters} "
            "experts. Use fewer experts or a CLIP with more image tokens."
        )
    if capacity is None:
        return [num_tokens] * num_clusters
    share, rest = divmod(num_tokens, num_clusters)
    if int(share * capacity) < 1:
        raise UserError(
            f"A capacity factor of {capacity} leaves no token to a cluster of {share}. "
            f"Use a capacity of at least {1 / share:.3g}, or none."
        )
    return [int(share * capacity) + (cluster < rest) for cluster in range(num_clusters)]


@torch.no_grad()
def capacity_kmeans(
    tokens: Float[Tensor, "B P W"],
    start: Int[Tensor, "B M"],
    capacities: Sequence[int],
    max_iterations: int = 100,
) -> Clusters:
    """Return clusters of near tokens under |C_m| <= s_m, each image's by itself (TRIP, Eqs. 3 and 4).

    In each iteration a token claims the cluster with the smallest `distance + theta_m`, and each cluster keeps its s_m
    cheapest claimants, the lower index first when costs are equal: this is what token replacement ends with. Then
    theta_m rises by eta = 1e-4 times the cluster's size over its capacity, and centroids move to the means of their
    tokens. An empty cluster starts again, with theta_m = 0, at the token farthest from its nearest centroid. An image
    stops when its centroids moved by less than 1e-4 on average; they are then left unmoved.

    Args:
        tokens: Each image's tokens.
        start: Distinct indices of the tokens that the centroids start at.
        capacities: s_m.
        max_iterations: Largest number of iterations, at least 1.
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
    # Centroids of the tokens themselves: those in the loop were centred.
    return Clusters(mean_weights(last.members) @ exact, last.kept)


class Iteration(NamedTuple):
    """The state of the clustering of a batch of images.

    Attributes:
        members: The tokens whose mean is each centroid, [B, M, P].
        multipliers: theta_m, [B, M].
        kept: The tokens that each cluster keeps, [B, M, P].
        running: Whether each image's centroids still move, [B].
    """

    members: Tensor
    multipliers: Tensor
    kept: Tensor
    running: Tensor


def iterate(products: Tensor, limits: Tensor, state: Iteration, max_iterations: int) -> Iteration:
    """Repeat the clustering's step until no image's centroids move."""
    for _ in range(max_iterations):
        if not state.running.any():
            break
        state = next_iteration(products, limits, state)
    return state


def next_iteration(products: Float[Tensor, "B P P"], limits: Int[Tensor, "B M"], state: Iteration) -> Iteration:
    """Assign tokens to clusters, and move multipliers and centroids; an image that has converged stays as it is."""
    distances = distances_to_means(products, state.members)
    assigned = assign_with_capacity(distances + state.multipliers[:, :, None], limits)
    sizes = assigned.sum(dim=2)
    empty = sizes == 0
    # An empty cluster starts again at the token that is worst served.
    farthest = distances.amin(dim=1).argmax(dim=1)
    indices = torch.arange(products.shape[1], device=products.device)
    moved = assigned | (empty[:, :, None] & (farthest[:, None, None] == indices))
    # A full cluster becomes dearer for all tokens, an empty one is as cheap as at first.
    raised = (state.multipliers + 1e-4 * (sizes - limits)).masked_fill(empty, 0.0)
    # The squared shift is c^T K c, with the scalar products K: no centroid is computed in the loop.
    change = mean_weights(moved) - mean_weights(state.members)
    shift = ((change @ products) * change).sum(dim=2).clamp(min=0).sqrt().mean(dim=1)
    # An image that has converged keeps its centroids while others of its batch are still moving.
    moves = state.running & (shift >= 1e-4)
    return Iteration(
        members=torch.where(moves[:, None, None], moved, state.members),
        multipliers=torch.where(moves[:, None], raised, state.multipliers),
        kept=torch.where(state.running[:, None, None], assigned, state.kept),
        running=moves,
    )


def assign_with_capacity(costs: Float[Tensor, "B M P"], limits: Int[Tensor, "B M"]) -> Bool[Tensor, "B M P"]:
    """Return the tokens that each cluster keeps: of those for which it is the cheapest, its s_m cheapest.

    Args:
        costs: Cost of each token in each cluster; of equal clusters the first is claimed.
        limits: s_m; of claimants with equal costs those with the lower index are kept.
    """
    cost, cluster = costs.min(dim=1)  # [B, P]
    # Which tokens want each cluster, before any is refused.
    claimed = cluster[:, None] == torch.arange(limits.shape[1], device=costs.device)[:, None]  # [B, M, P]
    order = cost.argsort(dim=1, stable=True)[:, None].expand_as(claimed)
    ranks = claimed.gather(2, order).cumsum(dim=2)  # among the claimants of a cluster, from 1, cheapest first
    return claimed & (torch.empty_like(ranks).scatter_(2, order, ranks) <= limits[:, :, None])


def mean_weights(members: Bool[Tensor, "B M P"]) -> Float[Tensor, "B M P"]:
    """Compute the weights over tokens by which a mean of some of them is taken."""
    exact = members.double()
    return exact / exact.sum(dim=2, keepdim=True)


def distances_to_means(products: Float[Tensor, "B P P"], members: Bool[Tensor, "B M P"]) -> Float[Tensor, "B M P"]:
    """Compute the distances of tokens to the means of some of them, to 1e-9, so that ties are ties.

    Args:
        products: The tokens' scalar products, in double precision.
        members: The tokens that each mean is of.
    """
    weights = mean_weights(members)
    with_means = weights @ products  # [B, M, P]
    of_means = (with_means * weights).sum(dim=2, keepdim=True)
    squares = products.diagonal(dim1=1, dim2=2)[:, None] + of_means
    squared = squares - 2 * with_means
    # What is below the rounding of these sums is a token at its mean.
    distances = squared.masked_fill(squared < 1e-12 * squares, 0.0).sqrt()
    return (distances * 1e9).round() / 1e9
