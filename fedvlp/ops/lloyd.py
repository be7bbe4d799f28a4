"""One iteration of k-means with capacities, for all images of a batch at once.

Centroids are means of tokens, so they are kept as weights over tokens, and all distances follow from the tokens' scalar
products, which are taken once and in single precision. Where rounding could decide anything, an image's distances are
taken anew in double precision, so that all decisions are those of double precision.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

_RELATIVE_ERROR = {torch.float32: 1e-6, torch.float64: 1e-13}
"""Bound on the error of a squared distance, relative to the squares it is made of; twice what was ever seen."""

_IMAGES_AT_ONCE, _TOKENS_AT_ONCE = 8, 64


@dataclass(frozen=True)
class Step:
    """What one iteration found.

    Args:
        weights: The new centroids as weights over tokens.
        products: Scalar products of the new centroids with the tokens.
        multipliers: The new theta_m.
        kept: The tokens of each cluster.
        shift: Mean distance that the centroids moved.
    """

    weights: Float[Tensor, "A M P"]
    products: Float[Tensor, "A M P"]
    multipliers: Float[Tensor, "A M"]
    kept: Bool[Tensor, "A M P"]
    shift: Float[Tensor, "A"]


@dataclass(frozen=True)
class Progress:
    """Where images stand between two iterations."""

    tokens: Float[Tensor, "B P W"]
    images: Int[Tensor, "A"]
    gram: Float[Tensor, "A P P"]
    weights: Float[Tensor, "A M P"]
    products: Float[Tensor, "A M P"]
    multipliers: Float[Tensor, "A M"]

    @staticmethod
    def begin(tokens: Float[Tensor, "B P W"], gram: Float[Tensor, "B P P"], start: Int[Tensor, "B M"]) -> Progress:
        """Returns centroids at the tokens of the start."""
        weights = F.one_hot(start, tokens.shape[1]).to(gram.dtype)
        multipliers = torch.zeros(start.shape, dtype=torch.float64, device=start.device)
        return Progress(
            tokens, torch.arange(len(tokens), device=start.device), gram, weights, weights @ gram, multipliers
        )

    def step(self, limits: Int[Tensor, "M"], multiplier_step: float, tolerance: float) -> Step:
        """Returns the claims that were kept, new multipliers and new centroids."""
        claims, farthest = self._claim(limits)
        empty = claims.sizes == 0
        multipliers = (self.multipliers + multiplier_step * (claims.sizes - limits)).masked_fill(empty, 0.0)
        weights = claims.kept.to(self.gram.dtype) / claims.sizes.clamp(min=1)[:, :, None]
        if bool(empty.any()):
            renewed = F.one_hot(farthest, weights.shape[2]).to(weights.dtype)  # [A, P]
            weights = torch.where(empty[:, :, None], renewed[:, None], weights)
        products = weights @ self.gram
        return Step(weights, products, multipliers, claims.kept, self._shift(weights, products, tolerance))

    def advance(self, step: Step, running: Bool[Tensor, "A"]) -> tuple[Progress, Bool[Tensor, "A"]]:
        """Returns where the images stand after a step, and which still run; once most do not, these are left behind."""
        if 2 * int(running.sum()) > len(running):
            return replace(self, weights=step.weights, products=step.products, multipliers=step.multipliers), running
        moved = (step.weights[running], step.products[running], step.multipliers[running])
        return Progress(self.tokens, self.images[running], self.gram[running], *moved), running[running]

    def _claim(self, limits: Int[Tensor, "M"]) -> tuple[Claims, Int[Tensor, "A"]]:
        """Returns the tokens' claims and, for images with an empty cluster, the token farthest from all centroids."""
        squares = self.gram.diagonal(dim1=1, dim2=2)  # [A, P]
        centroids = (self.products * self.weights).sum(dim=2, keepdim=True)  # squared norms [A, M, 1]
        distances = torch.sub(squares[:, None] + centroids, self.products, alpha=2).clamp_(min=0).sqrt_()
        costs = distances.add_(self.multipliers[:, :, None].to(distances.dtype))
        claims = claim_with_capacity(costs, limits)
        farthest = torch.zeros_like(self.images)
        error = _RELATIVE_ERROR[costs.dtype] * (squares + centroids.amax(dim=1))
        doubtful = claims.are_close(costs, error) | (claims.sizes == 0).any(dim=1)
        if bool(doubtful.any()):
            exact = exact_distances(self.tokens[self.images[doubtful]], self.weights[doubtful])
            decided = claim_with_capacity(exact + self.multipliers[doubtful, :, None], limits)
            claims.kept[doubtful], claims.sizes[doubtful] = decided.kept, decided.sizes
            farthest[doubtful] = exact.amin(dim=1).argmax(dim=1)
        return claims, farthest

    def _shift(self, weights: Tensor, products: Tensor, tolerance: float) -> Float[Tensor, "A"]:
        """Returns how far the centroids moved on average; exactly, where it is little."""
        moved = weights - self.weights
        shift = ((products - self.products) * moved).sum(dim=2).clamp(min=0).sqrt().mean(dim=1).double()
        error = (_RELATIVE_ERROR[moved.dtype] * self.gram.diagonal(dim1=1, dim2=2).amax(dim=1)).sqrt()
        little = (shift <= tolerance + error).nonzero().flatten()
        little = little[(moved[little] != 0).flatten(1).any(dim=1)]
        if len(little):
            exact = equal_means(weights[little]) - equal_means(self.weights[little])
            shift[little] = (exact @ self.tokens[self.images[little]].double()).norm(dim=2).mean(dim=1)
        return shift


def token_products(tokens: Float[Tensor, "B P W"]) -> Float[Tensor, "B P P"]:
    """Returns the scalar products of each image's tokens, less their mean, which distances do not mind.

    Half of a symmetric matrix is multiplied and the rest copied, a few images at a time, which stay in the cache.
    """
    single = tokens.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"
    batch, count, _ = tokens.shape
    products = tokens.new_empty(batch, count, count, dtype=torch.float32 if single else torch.float64)
    for image in range(0, batch, _IMAGES_AT_ONCE):
        found = products[image : image + _IMAGES_AT_ONCE]
        centred = tokens[image : image + _IMAGES_AT_ONCE].to(products.dtype)
        centred = centred - centred.mean(dim=1, keepdim=True)
        for first in range(0, count, _TOKENS_AT_ONCE):
            last = first + _TOKENS_AT_ONCE
            block = centred[:, first:] @ centred[:, first:last].transpose(1, 2)  # [B, rest, tokens at once]
            found[:, first:, first:last] = block
            found[:, first:last, last:] = block[:, _TOKENS_AT_ONCE:].transpose(1, 2)
    return products


@dataclass(frozen=True)
class Claims:
    """Which cluster each token claims, and which claims are kept.

    Args:
        cost: Cost of each token in the cluster that it claims.
        cluster: The cluster that it claims.
        kept: The tokens that each cluster keeps.
        sizes: How many these are.
    """

    cost: Float[Tensor, "A P"]
    cluster: Int[Tensor, "A P"]
    kept: Bool[Tensor, "A M P"]
    sizes: Int[Tensor, "A M"]

    def are_close(self, costs: Float[Tensor, "A M P"], error: Float[Tensor, "A P"]) -> Bool[Tensor, "A"]:
        """Returns the images in which a claim, or a place in a full cluster, hangs on costs within rounding.

        Args:
            costs: Cost of each token in each cluster, its distance plus a multiplier that is never positive.
            error: Bound on the error of a token's squared distances.
        """
        margin = error / (self.cost.clamp(min=0) + error.sqrt()).clamp(min=1e-30)  # of a distance, [A, P]
        runner_up = costs.scatter(1, self.cluster[:, None], torch.inf).amin(dim=1)
        dearest = (self.cost + margin)[:, None].masked_fill(~self.kept, -torch.inf).amax(dim=2)  # kept, [A, M]
        limit = dearest.gather(1, self.cluster)  # [A, P]
        is_close_drop = (self.cost - margin <= limit) & ~self.kept.any(dim=1)
        return ((runner_up - self.cost <= 2 * margin) | is_close_drop).any(dim=1)


def claim_with_capacity(costs: Float[Tensor, "A M P"], limits: Int[Tensor, "M"]) -> Claims:
    """Returns the tokens' claims: the cheapest cluster, the first of equals, which keeps its s_m cheapest claimants.

    Args:
        costs: Cost of each token in each cluster.
        limits: s_m; of claimants with equal costs those with the lower index are kept.
    """
    cost, cluster = costs.min(dim=1)  # [A, P]
    kept = cluster[:, None] == torch.arange(len(limits), device=costs.device)[:, None]  # [A, M, P]
    sizes = kept.sum(dim=2)
    for limit in set(limits.tolist()):
        images, full = ((sizes > limit) & (limits == limit)).nonzero(as_tuple=True)
        if len(images):
            claimed = cost[images].masked_fill(~kept[images, full], torch.inf)  # [full clusters, P]
            threshold = claimed.kthvalue(limit, dim=1, keepdim=True).values
            below, at = claimed < threshold, claimed == threshold
            room = limit - below.sum(dim=1, keepdim=True)
            kept[images, full] = below | (at & (at.cumsum(dim=1) <= room))
    return Claims(cost, cluster, kept, torch.minimum(sizes, limits))


def exact_distances(tokens: Float[Tensor, "B P W"], weights: Float[Tensor, "B M P"]) -> Float[Tensor, "B M P"]:
    """Returns Euclidean distances between centroids and tokens in double precision, to 1e-9, so that ties are ties."""
    tokens = tokens.double()
    tokens = tokens - tokens.mean(dim=1, keepdim=True)
    centroids = equal_means(weights) @ tokens
    squares = tokens.square().sum(dim=2)[:, None] + centroids.square().sum(dim=2, keepdim=True)
    squared = squares - 2 * centroids @ tokens.transpose(1, 2)
    return squared.masked_fill(squared < 1e-12 * squares, 0.0).sqrt().round(decimals=9)


def equal_means(weights: Tensor) -> Float[Tensor, "B M P"]:
    """Returns centroids' weights over tokens anew in double precision: equal ones for all tokens of a cluster."""
    members = (weights > 0).double()
    return members / members.sum(dim=2, keepdim=True)
