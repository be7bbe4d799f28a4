"""The cheapest one-to-one assignment by dynamic programming over subsets, in tensors alone, which can be exported."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedvlp.utils.errors import UserError

_MOST = 12  # experts; there are 2 to the power of these subsets


def cheapest_assignment(costs: Float[Tensor, "B M E"]) -> Int[Tensor, "B M"]:
    """Returns the expert of each cluster, all different, such that the costs' total is least.

    Args:
        costs: of each cluster with each of as many experts.

    Raises:
        UserError: If there are more than 12 experts.

    Example:
        >>> cheapest_assignment(torch.tensor([[[1.0, 2.0, 9.0], [0.0, 5.0, 9.0], [4.0, 1.0, 3.0]]])).tolist()
        [[1, 0, 2]]
    """
    count = costs.shape[2]
    if count > _MOST:
        raise UserError(f"Routes of {count} experts are matched outside of tensors; at most {_MOST} can be exported.")
    experts = torch.arange(count)
    subsets = torch.arange(2**count)
    holds = (subsets[:, None] >> experts) & 1 == 1  # [subsets, E]
    without = (subsets[:, None] - 2**experts).clamp(min=0)
    total = torch.where(subsets == 0, 0.0, torch.inf).to(costs.dtype).expand(costs.shape[0], -1)  # of no clusters
    choices = []
    for cluster in range(count):
        with_last = (total[:, without] + costs[:, cluster, None]).masked_fill(~holds, torch.inf)  # [B, subsets, E]
        total, choice = with_last.min(dim=2)
        choices.append(choice)
    left = torch.full_like(choices[0][:, :1], 2**count - 1)  # [B, 1]
    matched: list[Tensor] = []
    for choice in reversed(choices):
        chosen = choice.gather(1, left)
        matched.insert(0, chosen)
        left = left - (2**experts)[chosen]
    return torch.cat(matched, dim=1)
