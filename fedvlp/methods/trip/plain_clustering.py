"""k-means with capacities as one loop of plain tensor operations in double precision, which can be exported.

Its decisions are those of :func:`.several_kmeans`, which takes them as double precision would and is many times faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedvlp.methods.trip.assignments import assign_with_capacity
from fedvlp.methods.trip.lloyd import equal_means
from fedvlp.methods.trip.loops import repeat_while


def plain_kmeans(
    tokens: Float[Tensor, "B P W"],
    start: Int[Tensor, "B M"],
    capacities: Sequence[int],
    max_iterations: int,
    tolerance: float,
    multiplier_step: float,
) -> tuple[Float[Tensor, "B M P"], Bool[Tensor, "B M P"]]:
    """Returns the centroids as weights over tokens, and the tokens of each cluster; arguments as `capacity_kmeans`.

    An image that has converged stays as it is while others of its batch go on.
    """
    exact = tokens.double()
    exact = exact - exact.mean(dim=1, keepdim=True)
    limits = torch.tensor(capacities).expand(start.shape)
    indices = torch.arange(tokens.shape[1])

    def goes_on(iteration: Tensor, members: Tensor, multipliers: Tensor, kept: Tensor, running: Tensor) -> Tensor:
        return (iteration < max_iterations) & running.any()

    def step(
        iteration: Tensor, members: Tensor, multipliers: Tensor, kept: Tensor, running: Tensor
    ) -> tuple[Tensor, ...]:
        distances = plain_distances(exact, members)
        assigned = assign_with_capacity(distances + multipliers[:, :, None], limits)
        empty = assigned.sizes == 0
        farthest = distances.amin(dim=1).argmax(dim=1)
        renewed = farthest[:, None, None] == indices  # [B, 1, P]
        moved = assigned.kept | (empty[:, :, None] & renewed)
        raised = multipliers + multiplier_step * (assigned.sizes - limits)
        shift = ((equal_means(moved) - equal_means(members)) @ exact).norm(dim=2).mean(dim=1)
        goes = running & (shift >= tolerance)
        return (
            iteration + 1,
            _chosen(goes, moved, members),
            torch.where(goes[:, None], raised.masked_fill(empty, 0.0), multipliers),
            _chosen(running, assigned.kept, kept),
            goes,
        )

    members = start[:, :, None] == indices  # [B, M, P]
    multipliers = torch.zeros(start.shape, dtype=torch.float64)
    running = torch.ones(start.shape[:1], dtype=torch.bool)
    values = (torch.zeros((), dtype=torch.int64), members, multipliers, torch.zeros_like(members), running)
    _, members, _, kept, _ = repeat_while(goes_on, step, values)
    return equal_means(members), kept


def _chosen(condition: Tensor, members: Tensor, others: Tensor) -> Bool[Tensor, "B M P"]:
    """`torch.where`, which ONNX Runtime does not have of truth values."""
    holds = condition[:, None, None]
    return (holds & members) | (~holds & others)


def plain_distances(centred: Float[Tensor, "B P W"], members: Bool[Tensor, "B M P"]) -> Float[Tensor, "B M P"]:
    """Returns the distances of tokens to the means of some of them, to 1e-9, so that ties are ties.

    Args:
        centred: tokens in double precision, less their mean.
        members: which tokens each mean is of.
    """
    centroids = equal_means(members) @ centred  # [B, M, W]
    squares = centred.square().sum(dim=2)[:, None] + centroids.square().sum(dim=2, keepdim=True)
    squared = squares - 2 * centroids @ centred.transpose(1, 2)
    distances = squared.masked_fill(squared < 1e-12 * squares, 0.0).sqrt()
    return (distances * 1e9).round() / 1e9
