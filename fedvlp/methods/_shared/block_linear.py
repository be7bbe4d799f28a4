"""Linear maps of prompts, one for each block of a tower, held in one tensor."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class BlockLinear(nn.Module):
    """A linear map for each block.

    Args:
        blocks: J.
        inputs: Width of what comes in.
        outputs: Width of what goes out.
        starts_at_zero: Whether all weights are zero at first.
    """

    def __init__(self, blocks: int, inputs: int, outputs: int, starts_at_zero: bool = False) -> None:
        super().__init__()
        bound = 0.0 if starts_at_zero else inputs**-0.5
        self.weight = nn.Parameter(torch.empty(blocks, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(blocks, outputs))

    def forward(self, tokens: Float[Tensor, "K J L inputs"]) -> Float[Tensor, "K J L outputs"]:
        """Returns each block's tokens through its own map."""
        return torch.einsum("kjli,jio->kjlo", tokens, self.weight) + self.bias[:, None]
