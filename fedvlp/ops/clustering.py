"""k-means with capacities over the tokens of each image, for whole batches of images (TRIP, Sec. IV-A)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedvlp.errors import UserError


@dataclass(frozen=True)
class Clusters:
    """The clusters of each image's tokens.

    Args:
        centroids: mu_m.
        sizes: Number of tokens kept in each cluster.
        assignment: Cluster of each token; -1 for a token that was dropped because its cluster was full.
    """

    centroids: Float[Tensor, "B M W"]
    sizes: Int[Tensor, "B M"]
    assignment: Int[Tensor, "B P"]


def cluster_capacities(num_tokens: int, num_clusters: int, capacity: float | None) -> list[int]:
    """Return s_m, the largest number of tokens that each cluster keeps: alpha P / M in whole tokens.

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
        raise UserError(f"{num_tokens} tokens make 1 to {num_tokens} clusters, but {num_clusters} experts ask for one each.")
    if capacity is None:
        return [num_tokens] * num_clusters
    share, rest = divmod(num_tokens, num_clusters)
    if int(share * capacity) < 1:
        raise UserError(
            f"A capacity factor of {capacity} leaves no token to a cluster of {share}. Use a capacity of at least {1 / share:.3g}."
        )
    return [int(share * capacity) + (cluster < rest) for cluster in range(num_clusters)]


@torch.no_grad()
def capacity_kmeans(
    tokens: Float[Tensor, "B P W"],
    start: Int[Tensor, "B M"],
    capacities: Sequence[int],
    max_iterations: int = 100,
    tolerance: float = 1e-4,
    multiplier_step: float = 1e-4,
) -> Clusters:
    """Return clusters of near tokens under |C_m| <= s_m, each image's by itself (TRIP, Eqs. 3 and 4).

    In each iteration a token claims the cluster with the smallest `distance + theta_m`, and each cluster keeps its s_m
    cheapest claimants, the lower index first when costs are equal: this is what token replacement ends with. Then
    theta_m rises by `multiplier_step` times the cluster's size over its capacity, and centroids move to the means of
    their tokens. An empty cluster starts anew at the token farthest from its nearest centroid, with theta_m = 0; several
    empty ones take the farthest, the second farthest, and so on.

    Centroids are means of tokens, so all distances follow from the tokens' scalar products, which are taken once, in
    double precision. Costs are compared in steps of 1e-9, so that equal tokens stay equal whatever the batch.

    Args:
        tokens: Each image's tokens.
        start: Distinct indices of the tokens that the centroids start at.
        capacities: s_m.
        max_iterations: Largest number of iterations, at least 1.
        tolerance: An image stops when its centroids moved by less than this on average; they then stay where they were.
        multiplier_step: eta, the step of the Lagrange multipliers.
    """
    vectors, limits = tokens.double(), torch.tensor(capacities, device=tokens.device)
    progress = _Progress.begin(vectors, start)
    images = torch.arange(len(tokens), device=tokens.device)
    means, sizes = torch.empty_like(progress.means), torch.empty_like(start)
    assignment = torch.empty(tokens.shape[:2], dtype=torch.int64, device=tokens.device)
    for _ in range(max_iterations):
        step = progress.step(limits, multiplier_step)
        done = step.shift < tolerance
        means[images] = torch.where(done[:, None, None], progress.means, step.means)
        sizes[images], assignment[images] = step.sizes, step.assignment
        if bool(done.all()):
            break
        progress, images = progress.advance(step, ~done), images[~done]
    return Clusters((means @ vectors).to(tokens.dtype), sizes, assignment)


@dataclass(frozen=True)
class _Step:
    """What one iteration found."""

    means: Float[Tensor, "B M P"]
    products: Float[Tensor, "B M P"]
    multipliers: Float[Tensor, "B M"]
    sizes: Int[Tensor, "B M"]
    assignment: Int[Tensor, "B P"]
    shift: Float[Tensor, "B"]


@dataclass(frozen=True)
class _Progress:
    """Where the images stand that have not stopped: centroids as weights over tokens, and what distances need."""

    gram: Float[Tensor, "B P P"]
    means: Float[Tensor, "B M P"]
    products: Float[Tensor, "B M P"]
    multipliers: Float[Tensor, "B M"]

    @staticmethod
    def begin(vectors: Tensor, start: Tensor) -> _Progress:
        """Return centroids at the tokens of the start."""
        gram = vectors @ vectors.transpose(1, 2)
        means = F.one_hot(start, vectors.shape[1]).to(vectors.dtype)
        return _Progress(gram, means, means @ gram, torch.zeros_like(means[:, :, 0]))

    def distances(self) -> Float[Tensor, "B M P"]:
        """Return Euclidean distances between centroids and tokens, to 1e-9; what is rounding alone is zero."""
        squares = self.gram.diagonal(dim1=1, dim2=2)[:, None] + (self.products * self.means).sum(dim=2, keepdim=True)
        squared = squares - 2 * self.products
        return squared.masked_fill(squared < 1e-12 * squares, 0.0).sqrt().round(decimals=9)

    def step(self, limits: Tensor, multiplier_step: float) -> _Step:
        """Return assignment, sizes, new multipliers and new centroids."""
        distances = self.distances()
        assignment, kept = assign_with_capacity(distances + self.multipliers[:, :, None], limits)
        sizes = kept.sum(dim=2)
        empty = sizes == 0
        multipliers = (self.multipliers + multiplier_step * (sizes - limits)).masked_fill(empty, 0.0)
        means = kept.to(distances.dtype) / sizes.clamp(min=1)[:, :, None]
        if bool(empty.any()):
            farthest = distances.amin(dim=1).argsort(dim=1, descending=True, stable=True)  # [B, P]
            chosen = farthest.gather(1, (empty.cumsum(dim=1) - 1).clamp(min=0))  # [B, M]
            means = torch.where(empty[:, :, None], F.one_hot(chosen, means.shape[2]).to(means.dtype), means)
        products = means @ self.gram
        moved = ((products - self.products) * (means - self.means)).sum(dim=2)  # squared, [B, M]
        return _Step(means, products, multipliers, sizes, assignment, moved.clamp(min=0).sqrt().mean(dim=1))

    def advance(self, step: _Step, unfinished: Tensor) -> _Progress:
        """Return where the unfinished images stand after a step."""
        gram = self.gram if bool(unfinished.all()) else self.gram[unfinished]
        return _Progress(gram, step.means[unfinished], step.products[unfinished], step.multipliers[unfinished])


def assign_with_capacity(
    costs: Float[Tensor, "B M P"], limits: Int[Tensor, "M"]
) -> tuple[Int[Tensor, "B P"], Bool[Tensor, "B M P"]]:
    """Return each token's cluster, -1 if dropped, and the tokens of each cluster as a mask.

    Args:
        costs: Cost of each token in each cluster; a token claims the cheapest, the first of equals.
        limits: s_m; each cluster keeps its cheapest claimants, the lower index first when costs are equal.
    """
    lowest, claimed = costs.min(dim=1)  # [B, P]
    order = lowest.argsort(dim=1, stable=True)
    clusters = torch.arange(len(limits), device=costs.device)[:, None]
    in_order = claimed.gather(1, order)[:, None] == clusters  # [B, M, P], cheapest token first
    kept_in_order = in_order & (in_order.cumsum(dim=2) <= limits[:, None])
    kept = torch.zeros_like(kept_in_order).scatter_(2, order[:, None].expand_as(kept_in_order), kept_in_order)
    return torch.where(kept.any(dim=1), claimed, -1), kept
