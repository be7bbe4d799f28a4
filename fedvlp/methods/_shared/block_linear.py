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
        weight_bound: Weights start uniform between minus and plus this; by default 1 / sqrt(inputs).
        bias_bound: The same for biases; by default they start at 0.
    """

    def __init__(
        self, blocks: int, inputs: int, outputs: int, weight_bound: float | None = None, bias_bound: float = 0.0
    ) -> None:
        super().__init__()
        bound = inputs**-0.5 if weight_bound is None else weight_bound
        self.weight = nn.Parameter(torch.empty(blocks, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(blocks, outputs))
        if bias_bound:
            nn.init.uniform_(self.bias, -bias_bound, bias_bound)

    def forward(self, tokens: Float[Tensor, "K J L inputs"]) -> Float[Tensor, "K J L outputs"]:
        """Returns each block's tokens through its own map."""
        return torch.einsum("kjli,jio->kjlo", tokens, self.weight) + self.bias[:, None]
