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
        assignment: Cluster of each token, -1 if dropped.
        shift: Mean distance that the centroids moved.
    """

    weights: Float[Tensor, "A M P"]
    products: Float[Tensor, "A M P"]
    multipliers: Float[Tensor, "A M"]
    assignment: Int[Tensor, "A P"]
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
        """Return centroids at the tokens of the start."""
        weights = F.one_hot(start, tokens.shape[1]).to(gram.dtype)
        multipliers = torch.zeros(start.shape, dtype=torch.float64, device=start.device)
        return Progress(
            tokens, torch.arange(len(tokens), device=start.device), gram, weights, weights @ gram, multipliers
        )

    def step(self, limits: Int[Tensor, "M"], multiplier_step: float, tolerance: float) -> Step:
        """Return assignment, new multipliers and new centroids."""
        assignment, kept, farthest = self._assign(limits)
        sizes = kept.sum(dim=2)
        empty = sizes == 0
        multipliers = (self.multipliers + multiplier_step * (sizes - limits)).masked_fill(empty, 0.0)
        weights = kept.to(self.gram.dtype) / sizes.clamp(min=1)[:, :, None]
        if bool(empty.any()):
            renewed = F.one_hot(farthest, weights.shape[2]).to(weights.dtype)  # [A, P]
            weights = torch.where(empty[:, :, None], renewed[:, None], weights)
        products = weights @ self.gram
        return Step(weights, products, multipliers, assignment, self._shift(weights, products, tolerance))

    def advance(self, step: Step, running: Bool[Tensor, "A"]) -> tuple[Progress, Bool[Tensor, "A"]]:
        """Return where the images stand after a step, and which still run; once most do not, these are left behind."""
        if 2 * int(running.sum()) > len(running):
            return replace(self, weights=step.weights, products=step.products, multipliers=step.multipliers), running
        moved = (step.weights[running], step.products[running], step.multipliers[running])
        return Progress(self.tokens, self.images[running], self.gram[running], *moved), running[running]

    def _assign(self, limits: Int[Tensor, "M"]) -> tuple[Int[Tensor, "A P"], Bool[Tensor, "A M P"], Int[Tensor, "A"]]:
        """Return each token's cluster (-1 if dropped), each cluster's tokens, and the token farthest from all centroids.

        The farthest token is found only where a cluster is empty.
        """
        squares = self.gram.diagonal(dim1=1, dim2=2)  # [A, P]
        centroids = (self.products * self.weights).sum(dim=2, keepdim=True)  # squared norms [A, M, 1]
        distances = (squares[:, None] + centroids - 2 * self.products).clamp_(min=0).sqrt_()
        costs = distances + self.multipliers[:, :, None].to(distances.dtype)
        assignment, kept = assign_with_capacity(costs, limits)
        farthest = torch.zeros_like(self.images)
        error = _RELATIVE_ERROR[costs.dtype] * (squares + centroids.amax(dim=1))
        doubtful = is_close(costs, assignment, kept, error) | (kept.sum(dim=2) == 0).any(dim=1)
        if bool(doubtful.any()):
            exact = exact_distances(self.tokens[self.images[doubtful]], self.weights[doubtful])
            costs = exact + self.multipliers[doubtful, :, None]
            assignment[doubtful], kept[doubtful] = assign_with_capacity(costs, limits)
            farthest[doubtful] = exact.amin(dim=1).argmax(dim=1)
        return assignment, kept, farthest

    def _shift(self, weights: Tensor, products: Tensor, tolerance: float) -> Float[Tensor, "A"]:
        """Return how far the centroids moved on average; exactly, where it is little."""
        moved = weights - self.weights
        shift = ((products - self.products) * moved).sum(dim=2).clamp(min=0).sqrt().mean(dim=1).double()
        error = (_RELATIVE_ERROR[moved.dtype] * self.gram.diagonal(dim1=1, dim2=2).amax(dim=1)).sqrt()
        little = shift <= tolerance + error
        if bool(little.any()):
            exact = _means(weights[little]) - _means(self.weights[little])
            shift[little] = (exact @ self.tokens[self.images[little]].double()).norm(dim=2).mean(dim=1)
        return shift


def token_products(tokens: Float[Tensor, "B P W"]) -> Float[Tensor, "B P P"]:
    """Return the scalar products of each image's tokens, less their mean, which distances do not mind.

    Half of a symmetric matrix is multiplied and the rest copied, a few images at a time, which stay in the cache.
    """
    single = tokens.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"
    batch, count, _ = tokens.shape
    products = tokens.new_empty(batch, count, count, dtype=torch.float32 if single else torch.float64)
    for part, found in zip(tokens.split(_IMAGES_AT_ONCE), products.split(_IMAGES_AT_ONCE), strict=True):
        centred = part.to(products.dtype)
        centred = centred - centred.mean(dim=1, keepdim=True)
        for first in range(0, count, _TOKENS_AT_ONCE):
            last = first + _TOKENS_AT_ONCE
            block = centred[:, first:] @ centred[:, first:last].transpose(1, 2)  # [B, rest, tokens at once]
            found[:, first:, first:last] = block
            found[:, first:last, last:] = block[:, _TOKENS_AT_ONCE:].transpose(1, 2)
    return products


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


def is_close(
    costs: Float[Tensor, "B M P"],
    assignment: Int[Tensor, "B P"],
    kept: Bool[Tensor, "B M P"],
    error: Float[Tensor, "B P"],
) -> Bool[Tensor, "B"]:
    """Return the images in which a claim, or a place in a full cluster, hangs on costs within rounding of each other.

    Args:
        costs: Cost of each token in each cluster, its distance plus a multiplier that is never positive.
        assignment: Cluster of each token, -1 if dropped.
        kept: Tokens that each cluster keeps.
        error: Bound on the error of a token's squared distances.
    """
    lowest, claimed = costs.min(dim=1)
    claims = claimed[:, None] == torch.arange(costs.shape[1], device=costs.device)[:, None]  # [B, M, P]
    margin = error / (lowest.clamp(min=0) + error.sqrt()).clamp(min=1e-30)  # of a distance, [B, P]
    runner_up = costs.masked_fill(claims, torch.inf).amin(dim=1)
    dearest = (lowest + margin)[:, None].masked_fill(~kept, -torch.inf).amax(dim=2)  # kept in each cluster, [B, M]
    is_close_drop = (assignment < 0) & (lowest - margin <= dearest.gather(1, claimed))
    return ((runner_up - lowest <= 2 * margin) | is_close_drop).any(dim=1)


def exact_distances(tokens: Float[Tensor, "B P W"], weights: Float[Tensor, "B M P"]) -> Float[Tensor, "B M P"]:
    """Return Euclidean distances between centroids and tokens in double precision, to 1e-9, so that ties are ties."""
    tokens = tokens.double()
    tokens = tokens - tokens.mean(dim=1, keepdim=True)
    centroids = _means(weights) @ tokens
    squares = tokens.square().sum(dim=2)[:, None] + centroids.square().sum(dim=2, keepdim=True)
    squared = squares - 2 * centroids @ tokens.transpose(1, 2)
    return squared.masked_fill(squared < 1e-12 * squares, 0.0).sqrt().round(decimals=9)


def _means(weights: Tensor) -> Float[Tensor, "B M P"]:
    """Return the same equal weights in double precision."""
    members = (weights > 0).double()
    return members / members.sum(dim=2, keepdim=True)
