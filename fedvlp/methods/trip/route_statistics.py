"""How alike two sets of routing weights are, and how an image's tokens are spread over experts."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def correlations(first: Float[Tensor, "N E"], second: Float[Tensor, "N E"]) -> Float[Tensor, "E"]:
    """Returns Pearson's correlation over images of each expert's weight; nan where a weight is the same for all images.

    Example:
        >>> one = torch.tensor([[0.1, 0.5], [0.3, 0.5], [0.5, 0.5]])
        >>> correlations(one, 1 - 2 * one)
        tensor([-1., nan])
    """
    first = first.double() - first.double().mean(dim=0)
    second = second.double() - second.double().mean(dim=0)
    spread = first.norm(dim=0) * second.norm(dim=0)
    return torch.where(spread > 1e-12 * len(first), (first * second).sum(dim=0) / spread, torch.nan).float()


def agreement(first: Float[Tensor, "N E"], second: Float[Tensor, "N E"]) -> float:
    """Returns the share of images that have the same largest expert, in [0, 1]; the first of equals counts.

    Example:
        >>> agreement(torch.tensor([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([[0.3, 0.7], [0.1, 0.9]]))
        0.5
    """
    return (first.argmax(dim=1) == second.argmax(dim=1)).double().mean().item()
