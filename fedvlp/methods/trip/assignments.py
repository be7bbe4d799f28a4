"""To which cluster each token is assigned, where a cluster of limited capacity keeps its cheapest claimants."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Assignment:
    """The tokens of each cluster.

    Args:
        kept: The tokens that each cluster keeps.
        sizes: How many these are.
    """

    kept: Bool[Tensor, "A M P"]
    sizes: Int[Tensor, "A M"]


def assign_with_capacity(costs: Float[Tensor, "A M P"], limits: Int[Tensor, "A M"]) -> Assignment:
    """Assigns each token to its cheapest cluster, the first of equals, which keeps its s_m cheapest claimants.

    Args:
        costs: Cost of each token in each cluster.
        limits: s_m; of claimants with equal costs those with the lower index are kept.
    """
    cost, cluster = costs.min(dim=1)  # [A, P]
    claimed = cluster[:, None] == torch.arange(limits.shape[1], device=costs.device)[:, None]  # [A, M, P]
    order = cost.argsort(dim=1, stable=True)[:, None].expand_as(claimed)
    places = claimed.gather(2, order).cumsum(dim=2)  # among the claimants of a cluster, from 1, cheapest first
    kept = claimed & (torch.empty_like(places).scatter_(2, order, places) <= limits[:, :, None])
    return Assignment(kept, kept.sum(dim=2))


def assign_unless_close(
    costs: Float[Tensor, "A M P"], limits: Int[Tensor, "A M"], error: Float[Tensor, "A P"]
) -> tuple[Assignment, Bool[Tensor, "A"]]:
    """Returns the assignment, and the images where it hangs on costs within rounding or leaves a cluster empty.

    A full cluster keeps its claimants by a threshold on the costs, which is faster than sorting all of them.

    Args:
        costs: Cost of each token in each cluster, its distance plus a multiplier that is never positive.
        limits: s_m.
        error: Bound on the error of a token's squared distances.
    """
    cost = costs.amin(dim=1)  # [A, P]
    margin = error / (cost.clamp(min=0) + error.sqrt()).clamp(min=1e-30)  # of a distance
    kept = costs == cost[:, None]
    runner_up = costs.masked_fill_(kept, torch.inf).amin(dim=1)
    claimants = kept.sum(dim=2)
    is_tie = claimants.sum(dim=1) > costs.shape[2]
    doubtful = (runner_up - cost <= 2 * margin).any(dim=1) | is_tie | (claimants == 0).any(dim=1)
    images, full = (claimants > limits).nonzero(as_tuple=True)
    if len(images):
        claimed = cost[images].masked_fill(~kept[images, full], torch.inf)  # [full clusters, P]
        threshold = kth_value(claimed, limits[images, full])
        stays = claimed <= threshold
        margin = margin[images]
        dearest = (claimed + margin).masked_fill(~stays, -torch.inf).amax(dim=1)
        cheapest = (claimed - margin).masked_fill(stays, torch.inf).amin(dim=1)
        doubtful[images[cheapest <= dearest]] = True
        doubtful[images[stays.sum(dim=1) > limits[images, full]]] = True
        kept[images, full] = stays
    return Assignment(kept, torch.minimum(claimants, limits)), doubtful


def kth_value(values: Float[Tensor, "N P"], k: Int[Tensor, "N"]) -> Float[Tensor, "N 1"]:
    """Returns the k-th smallest value of each row, each with its own k >= 1."""
    most = int(k.max())
    least = int(k.min())
    lower = torch.arange(most - least, device=k.device) < (most - k)[:, None]  # so many are put below all values
    padding = torch.where(lower, -torch.inf, torch.inf).to(values.dtype)
    return torch.cat([padding, values], dim=1).kthvalue(most, dim=1, keepdim=True).values
