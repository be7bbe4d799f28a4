"""Modules that make one prompt out of several clients', block by block (PLAN, Eqs. 11-13).

K prompt sets [K, J, L, width] become one [J, L, width], for J blocks with parameters of their own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.methods._shared.block_linear import BlockLinear
from fedvlp.utils.errors import UserError


class PromptAttention(nn.Module):
    """Weighs the clients' prompts by a learned query, and mixes them.

    a_k = softmax_k(<q, mean of phi(T_k) over tokens> / sqrt(width)) (Eq. 12), and T = sum_k a_k (T_k + psi(T_k))
    (Eq. 13). Prompts start small, so the first weights are equal to within a percent; psi's last layer starts at zero,
    so the first mixture is nearly the mean. The query does not: at zero it would leave phi without a gradient. The last
    bias of phi moves all scores alike and so changes nothing, but the paper's perceptron has it.

    Args:
        blocks: J, the number of blocks with prompts.
        width: Width of a prompt's tokens.
        reduction: r; the perceptrons phi and psi have width / r hidden units.

    Raises:
        UserError: If no hidden unit is left.

    >>> prompts = torch.tensor([1.0, 3.0]).view(2, 1, 1, 1).expand(2, 1, 1, 4)
    >>> aggregator = PromptAttention(blocks=1, width=4, reduction=2)
    >>> _ = torch.nn.init.zeros_(aggregator.query)
    >>> aggregator(prompts).flatten().tolist()
    [2.0, 2.0, 2.0, 2.0]
    """

    def __init__(self, blocks: int, width: int, reduction: int) -> None:
        super().__init__()
        if not 1 <= reduction <= width:
            raise UserError(f"Expected a reduction in [1, {width}], the width of a prompt's tokens, got {reduction}.")
        self.query = nn.Parameter(torch.randn(blocks, width))
        self.phi = _bottleneck(blocks, width, width // reduction, starts_at_zero=False)
        self.psi = _bottleneck(blocks, width, width // reduction, starts_at_zero=True)

    def weights(self, prompts: Float[Tensor, "K J L width"]) -> Float[Tensor, "K J"]:
        """Returns a_k for each block (Eq. 12)."""
        keys = self.phi(prompts).mean(dim=-2)  # [K, J, width]
        scores = torch.einsum("jd,kjd->kj", self.query, keys) / float(prompts.shape[-1] ** 0.5)
        return scores.softmax(dim=0)

    def forward(self, prompts: Float[Tensor, "K J L width"]) -> Float[Tensor, "J L width"]:
        """Returns the mixture (Eq. 13), in float32."""
        with torch.autocast(prompts.device.type, enabled=False):
            return torch.einsum("kj,kjld->jld", self.weights(prompts), prompts + self.psi(prompts))


class AttentionOverClients(nn.Module):
    """The released code's aggregator: a transformer block in which the clients are the sequence, then their mean.

    Each block of CLIP has its own attention and its own perceptron; both layer norms are shared by all. All starts as
    in PyTorch's own layers, of which the released code is made: Xavier's bound for queries, keys and values together,
    biases of the attention 0, those of the perceptron within 1 / sqrt(inputs).

    Args:
        blocks: J, the number of blocks with prompts.
        width: Width of a prompt's tokens.
        heads: Heads of the attention.

    Raises:
        UserError: If the width is not a multiple of the heads.
    """

    def __init__(self, blocks: int, width: int, heads: int = 8) -> None:
        super().__init__()
        if width % heads:
            raise UserError(f"Expected prompts of a width that {heads} heads divide, got {width}. Choose another CLIP.")
        self.heads = heads
        self.project_in = BlockLinear(blocks, width, 3 * width, weight_bound=(6 / (width + 3 * width)) ** 0.5)
        self.project_out = BlockLinear(blocks, width, width)
        wide = BlockLinear(blocks, width, 2 * width, bias_bound=width**-0.5)
        narrow = BlockLinear(blocks, 2 * width, width, bias_bound=(2 * width) ** -0.5)
        self.perceptron = nn.Sequential(wide, nn.ReLU(), narrow)
        self.attention_norm = nn.LayerNorm(width)
        self.perceptron_norm = nn.LayerNorm(width)

    def forward(self, prompts: Float[Tensor, "K J L width"]) -> Float[Tensor, "J L width"]:
        """Returns the mean over clients of their attended prompts, in float32."""
        with torch.autocast(prompts.device.type, enabled=False):
            hidden = self.attention_norm(prompts + self._attend(prompts))
            hidden = self.perceptron_norm(hidden + self.perceptron(hidden))
            mean: Tensor = hidden.mean(dim=0)
        return mean

    def _attend(self, prompts: Float[Tensor, "K J L width"]) -> Float[Tensor, "K J L width"]:
        """What each client's token gathers from the tokens at its place in all clients' prompts."""
        heads = self.project_in(prompts).unflatten(-1, (3, self.heads, -1)).permute(3, 1, 2, 4, 0, 5)
        gathered = F.scaled_dot_product_attention(*heads)  # [J, L, heads, K, width / heads]
        attended: Tensor = self.project_out(gathered.permute(3, 0, 1, 2, 4).flatten(-2))
        return attended


def _bottleneck(blocks: int, width: int, hidden: int, starts_at_zero: bool) -> nn.Sequential:
    """A perceptron of two layers for each block."""
    last = BlockLinear(blocks, hidden, width, weight_bound=0.0 if starts_at_zero else None)
    return nn.Sequential(BlockLinear(blocks, width, hidden), nn.ReLU(), last)
