"""One iteration of k-means with capacities, for all images of a batch at once.

Centroids are means of tokens, so all distances follow from the tokens' scalar products, which are taken once and in
single precision; when few tokens change their cluster, only their products are added and taken away. Where rounding
could decide anything, an image's distances are taken anew in double precision, so that all decisions are those of
double precision.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedvlp.methods.trip.assignments import Assignment, assign_unless_close, assign_with_capacity

_RELATIVE_ERROR = {torch.float32: 2e-6, torch.float64: 1e-13}
"""Bound on the error of a squared distance, relative to the token's square plus the largest; twice what was seen."""

_IMAGES_AT_ONCE = 8
_TOKENS_AT_ONCE = 64


@dataclass(frozen=True)
class Centroids:
    """Means of tokens, and their scalar products with all tokens.

    Args:
        members: The tokens that a centroid is the mean of, at least one.
        weights: The same as weights over tokens.
        sums: Scalar products of the members' sum with the tokens.
        products: Scalar products of the centroids with the tokens.
    """

    members: Bool[Tensor, "A M P"]
    weights: Float[Tensor, "A M P"]
    sums: Float[Tensor, "A M P"]
    products: Float[Tensor, "A M P"]

    @staticmethod
    def of_tokens(members: Bool[Tensor, "A M P"], gram: Float[Tensor, "B P P"], images: Int[Tensor, "A"]) -> Centroids:
        """Returns the means of some tokens."""
        nothing = torch.zeros_like(members, dtype=gram.dtype)
        return Centroids(torch.zeros_like(members), nothing, nothing, nothing).moved(members, gram, images)

    def moved(
        self, members: Bool[Tensor, "A M P"], gram: Float[Tensor, "B P P"], images: Int[Tensor, "A"]
    ) -> Centroids:
        """Returns the means of other tokens, from the products of those that came or went."""
        num_tokens = gram.shape[2]
        changed = members != self.members
        bags, tokens = changed.flatten(0, 1).nonzero(as_tuple=True)
        counts = changed.sum(dim=2).flatten()
        signs = members.flatten(0, 1)[bags, tokens].to(gram.dtype) * 2 - 1
        rows = images[bags // members.shape[1]] * num_tokens + tokens
        difference = F.embedding_bag(
            rows, gram.view(-1, num_tokens), counts.cumsum(0) - counts, mode="sum", per_sample_weights=signs
        )
        sums = self.sums + difference.view_as(self.sums)
        sizes = members.sum(dim=2, keepdim=True)
        return Centroids(members, members / sizes, sums, sums / sizes)

    def select(self, chosen: Bool[Tensor, "A"]) -> Centroids:
        """Returns the centroids of some images."""
        return Centroids(self.members[chosen], self.weights[chosen], self.sums[chosen], self.products[chosen])


@dataclass(frozen=True)
class Step:
    """What one iteration found.

    Args:
        centroids: The new centroids.
        multipliers: The new theta_m.
        kept: The tokens of each cluster.
        shift: Mean distance that the centroids moved.
    """

    centroids: Centroids
    multipliers: Float[Tensor, "A M"]
    kept: Bool[Tensor, "A M P"]
    shift: Float[Tensor, "A"]


@dataclass(frozen=True)
class KMeansState:
    """What k-means knows of its images between two iterations; an image has a row for each of several capacities.

    Args:
        tokens: The tokens of all images.
        gram: Their scalar products.
        rows: Which rows are still here.
        images: Whose they are.
        limits: s_m of each.
        squares: Squared norms of the tokens.
        centroids: mu_m.
        multipliers: theta_m.
    """

    tokens: Float[Tensor, "B P W"]
    gram: Float[Tensor, "B P P"]
    rows: Int[Tensor, "A"]
    images: Int[Tensor, "A"]
    limits: Int[Tensor, "A M"]
    squares: Float[Tensor, "A P"]
    centroids: Centroids
    multipliers: Float[Tensor, "A M"]

    @staticmethod
    def start(
        tokens: Float[Tensor, "B P W"],
        gram: Float[Tensor, "B P P"],
        start: Int[Tensor, "B M"],
        limits: Int[Tensor, "capacities M"],
    ) -> KMeansState:
        """Returns centroids at the tokens of the start: rows of all images for the first limits, then the others."""
        rows = torch.arange(len(limits) * len(tokens), device=start.device)
        images = rows % len(tokens)
        squares = gram.diagonal(dim1=1, dim2=2)[images]
        centroids = Centroids.of_tokens(F.one_hot(start[images], tokens.shape[1]).bool(), gram, images)
        multipliers = torch.zeros(len(rows), start.shape[1], dtype=torch.float64, device=start.device)
        return KMeansState(tokens, gram, rows, images, limits[rows // len(tokens)], squares, centroids, multipliers)

    def step(self, multiplier_step: float, tolerance: float) -> Step:
        """Returns the new assignment, multipliers and centroids."""
        assigned, farthest = self._assign()
        empty = assigned.sizes == 0
        multipliers = (self.multipliers + multiplier_step * (assigned.sizes - self.limits)).masked_fill(empty, 0.0)
        members = assigned.kept
        if bool(empty.any()):
            renewed = F.one_hot(farthest, members.shape[2]).bool()  # [A, P]
            members = torch.where(empty[:, :, None], renewed[:, None], members)
        centroids = self.centroids.moved(members, self.gram, self.images)
        return Step(centroids, multipliers, assigned.kept, self._shift(centroids, tolerance))

    def advance(self, step: Step, running: Bool[Tensor, "A"]) -> tuple[KMeansState, Bool[Tensor, "remaining"]]:
        """Returns where the rows stand after a step, and which still run; once many do not, these are left behind."""
        if 4 * int(running.sum()) > 3 * len(running):
            return replace(self, centroids=step.centroids, multipliers=step.multipliers), running
        remaining = KMeansState(
            tokens=self.tokens,
            gram=self.gram,
            rows=self.rows[running],
            images=self.images[running],
            limits=self.limits[running],
            squares=self.squares[running],
            centroids=step.centroids.select(running),
            multipliers=step.multipliers[running],
        )
        return remaining, running[running]

    def _assign(self) -> tuple[Assignment, Int[Tensor, "A"]]:
        """The tokens' assignment and, for images with an empty cluster, the token farthest from all centroids."""
        centroids = (self.centroids.products * self.centroids.weights).sum(dim=2, keepdim=True)  # squared norms
        squared = torch.sub(self.squares[:, None] + centroids, self.centroids.products, alpha=2)  # [A, M, P]
        costs = squared.clamp_(min=0).sqrt_().add_(self.multipliers[:, :, None].to(squared.dtype))
        error = _RELATIVE_ERROR[costs.dtype] * (self.squares + self.squares.amax(dim=1, keepdim=True))
        assigned, doubtful = assign_unless_close(costs, self.limits, error)
        farthest = torch.zeros_like(self.images)
        if bool(doubtful.any()):
            exact = exact_distances(self.tokens[self.images[doubtful]], self.centroids.weights[doubtful])
            decided = assign_with_capacity(exact + self.multipliers[doubtful, :, None], self.limits[doubtful])
            assigned.kept[doubtful] = decided.kept
            assigned.sizes[doubtful] = decided.sizes
            farthest[doubtful] = exact.amin(dim=1).argmax(dim=1)
        return assigned, farthest

    def _shift(self, after: Centroids, tolerance: float) -> Float[Tensor, "A"]:
        """How far the centroids moved on average; exactly, where it is little."""
        moved = (after.products - self.centroids.products).mul_(after.weights - self.centroids.weights)
        shift = moved.sum(dim=2).clamp(min=0).sqrt().mean(dim=1).double()
        error = (_RELATIVE_ERROR[moved.dtype] * self.squares.amax(dim=1)).sqrt()
        little = (shift <= tolerance + error).nonzero().flatten()
        little = little[(after.members[little] != self.centroids.members[little]).flatten(1).any(dim=1)]
        if len(little):
            exact = equal_means(after.weights[little]) - equal_means(self.centroids.weights[little])
            shift[little] = (exact @ self.tokens[self.images[little]].double()).norm(dim=2).mean(dim=1)
        return shift


def token_products(tokens: Float[Tensor, "B P W"]) -> Float[Tensor, "B P P"]:
    """Returns the scalar products of each image's tokens, less nearly their mean, which distances do not mind.

    Half of a symmetric matrix is multiplied and the rest copied, a few images at a time, which stay in the cache.
    """
    single = tokens.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"
    batch, count = tokens.shape[:2]
    products = tokens.new_empty(batch, count, count, dtype=torch.float32 if single else torch.float64)
    for image in range(0, batch, _IMAGES_AT_ONCE):
        found = products[image : image + _IMAGES_AT_ONCE]
        centred = tokens[image : image + _IMAGES_AT_ONCE].to(products.dtype)
        centred = centred - centred[:, ::8].mean(dim=1, keepdim=True)
        for first in range(0, count, _TOKENS_AT_ONCE):
            last = first + _TOKENS_AT_ONCE
            block = centred[:, first:] @ centred[:, first:last].transpose(1, 2)  # [B, rest, tokens at once]
            found[:, first:, first:last] = block
            found[:, first:last, last:] = block[:, _TOKENS_AT_ONCE:].transpose(1, 2)
        squares = torch.linalg.vector_norm(centred, dim=2, dtype=torch.float64).square()  # sums of one sign err most
        found.diagonal(dim1=1, dim2=2).copy_(squares)
    return products


def exact_distances(tokens: Float[Tensor, "A P W"], weights: Float[Tensor, "A M P"]) -> Float[Tensor, "A M P"]:
    """Returns Euclidean distances between centroids and tokens in double precision, to 1e-9, so that ties are ties.

    Images are taken one after another, in the same memory, which stays in the cache.
    """
    means = equal_means(weights)
    distances = torch.empty_like(weights, dtype=torch.float64)
    centred = tokens.new_empty(tokens.shape[1:], dtype=torch.float64)
    for image, mean in enumerate(means):
        centred.copy_(tokens[image])
        centred.sub_(centred.mean(dim=0))
        centroids = mean @ centred  # [M, W]
        squares = torch.linalg.vector_norm(centred, dim=1).square() + centroids.square().sum(dim=1, keepdim=True)
        squared = squares - 2 * centroids @ centred.T
        distances[image] = squared.masked_fill(squared < 1e-12 * squares, 0.0).sqrt()
    return distances.round(decimals=9)


def equal_means(weights: Tensor) -> Float[Tensor, "B M P"]:
    """Returns centroids' weights over tokens anew in double precision: equal ones for all tokens of a cluster."""
    members = (weights > 0).double()
    return members / members.sum(dim=2, keepdim=True)
