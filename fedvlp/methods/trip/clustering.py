"""k-means with capacities over the tokens of each image, for whole batches of images (TRIP, Sec. IV-A)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedvlp.methods.trip.lloyd import KMeansState, token_products
from fedvlp.methods.trip.plain_clustering import plain_kmeans
from fedvlp.methods.trip.precision import without_autocast
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class Clusters:
    """The clusters of each image's tokens.

    Args:
        centroids: mu_m.
        weights: The centroids as weights over tokens.
        kept: The tokens of each cluster; a token that was dropped because its cluster was full is in none.
    """

    centroids: Float[Tensor, "B M W"]
    weights: Float[Tensor, "B M P"]
    kept: Bool[Tensor, "B M P"]

    @property
    def sizes(self) -> Int[Tensor, "B M"]:
        """Number of tokens kept in each cluster."""
        return self.kept.sum(dim=2)

    @property
    def assignment(self) -> Int[Tensor, "B P"]:
        """Cluster of each token; -1 for a token that was dropped."""
        return torch.where(self.kept.any(dim=1), self.kept.int().argmax(dim=1), -1)


def cluster_capacities(num_tokens: int, num_clusters: int, capacity: float | None) -> list[int]:
    """Returns s_m, the largest number of tokens that each cluster keeps: alpha P / M in whole tokens.

    Each gets the whole part of alpha times the whole part of P / M; the first P mod M clusters get one more.

    Args:
        num_tokens: P.
        num_clusters: M.
        capacity: alpha > 0, 1.0 when all clusters together hold exactly P tokens; None for no limit.

    Raises:
        UserError: If there are more clusters than tokens, or a cluster could keep no token.

    Example:
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


def capacity_kmeans(
    tokens: Float[Tensor, "B P W"],
    start: Int[Tensor, "B M"],
    capacities: Sequence[int],
    max_iterations: int = 100,
    tolerance: float = 1e-4,
    multiplier_step: float = 1e-4,
) -> Clusters:
    """Returns clusters of near tokens under |C_m| <= s_m, each image's by itself (TRIP, Eqs. 3 and 4).

    In each iteration a token claims the cluster with the smallest `distance + theta_m`, and each cluster keeps its s_m
    cheapest claimants, the lower index first when costs are equal: this is what token replacement ends with. Then
    theta_m rises by `multiplier_step` times the cluster's size over its capacity, and centroids move to the means of
    their tokens. An empty cluster starts anew, with theta_m = 0, at the token farthest from its nearest centroid.

    All decisions are those of double precision, where costs are compared in steps of 1e-9, so that equal tokens stay
    equal whatever the batch.

    Args:
        tokens: Each image's tokens.
        start: Distinct indices of the tokens that the centroids start at.
        capacities: s_m.
        max_iterations: Largest number of iterations, at least 1.
        tolerance: An image stops when its centroids moved by less than this on average; they then stay where they were.
        multiplier_step: eta, the step of the Lagrange multipliers.
    """
    return several_kmeans(tokens, start, [capacities], max_iterations, tolerance, multiplier_step)[0]


@torch.no_grad()
@without_autocast
def several_kmeans(
    tokens: Float[Tensor, "B P W"],
    start: Int[Tensor, "B M"],
    capacities: Sequence[Sequence[int]],
    max_iterations: int = 100,
    tolerance: float = 1e-4,
    multiplier_step: float = 1e-4,
) -> list[Clusters]:
    """Returns `capacity_kmeans` for each of several capacities, faster than one after another.

    Args:
        tokens: Each image's tokens.
        start: Distinct indices of the tokens that the centroids start at.
        capacities: Several s_m.
        max_iterations: As in `capacity_kmeans`, and so are the others.
        tolerance: Mean distance.
        multiplier_step: eta.

    Raises:
        UserError: If a token is not finite.
    """
    if torch.compiler.is_exporting():
        options = (max_iterations, tolerance, multiplier_step)
        return [_plain_clusters(tokens, *plain_kmeans(tokens, start, limits, *options)) for limits in capacities]
    if not bool(tokens.isfinite().all()):
        raise UserError(
            "Image tokens hold NaN or infinity, so they make no clusters. Use precision 32-true, or other weights."
        )
    state = KMeansState.start(tokens, token_products(tokens), start, torch.tensor(capacities, device=tokens.device))
    weights = torch.zeros_like(state.centroids.weights)
    kept = torch.zeros_like(state.centroids.members)
    running = torch.ones_like(state.images, dtype=torch.bool)
    for iteration in range(max_iterations):
        step = state.step(multiplier_step, tolerance)
        converged = step.shift < tolerance
        last = iteration + 1 == max_iterations
        ended = running if last else running & converged
        if bool(ended.any()):
            rows = state.rows[ended]
            stays = converged[ended, None, None]
            weights[rows] = torch.where(stays, state.centroids.weights[ended], step.centroids.weights[ended])
            kept[rows] = step.kept[ended]
            running = running & ~converged
        if last or not bool(running.any()):
            break
        state, running = state.advance(step, running)
    return _by_capacity(tokens, weights, kept, len(capacities))


def _plain_clusters(tokens: Tensor, weights: Tensor, kept: Tensor) -> Clusters:
    return Clusters(weights @ tokens.to(weights.dtype), weights, kept)


def _by_capacity(
    tokens: Float[Tensor, "B P W"], weights: Float[Tensor, "A M P"], kept: Bool[Tensor, "A M P"], count: int
) -> list[Clusters]:
    """The clusters of all images for each of `count` capacities; A = count * B rows, those of a capacity together."""
    by_capacity = weights.view(count, -1, *weights.shape[1:])  # [count, B, M, P]
    side_by_side = by_capacity.transpose(0, 1).flatten(1, 2)  # [B, count * M, P]
    centroids = (side_by_side @ tokens.to(weights.dtype)).chunk(count, dim=1)  # each [B, M, W]
    parts = zip(centroids, weights.chunk(count), kept.chunk(count), strict=True)
    return [Clusters(*part) for part in parts]
