"""CLIP's own transformer block on frozen weights, without the copies that a general attention layer makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from open_clip import transformer
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn

from fedvlp.clip.towers.chunked_mask import Mask, attend
from fedvlp.clip.towers.quick_gelu import QuickGELU

Linear = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Returns x W^T + b for x, W and b."""


def is_standard_block(block: nn.Module) -> bool:
    """Whether a block is CLIP's own kind: self-attention, then a multilayer perceptron."""
    return _computes_as(block, ResidualAttentionBlock) and _computes_as(block.attn, nn.MultiheadAttention)


def _computes_as(module: Any, kind: type[nn.Module]) -> bool:
    """Whether a module is of a kind and no subclass changes what it computes; `torch.export` shows it by a subclass."""
    return isinstance(module, kind) and type(module).forward is kind.forward


def run_block(
    block: Any,
    linear: Linear,
    hidden: Float[Tensor, "sequences length width"],
    mask: Mask | None,
    indices: Int[Tensor, "queries"] | None = None,
    attention: torch.dtype | None = None,
) -> Float[Tensor, "sequences outputs width"]:
    """Returns a block's output for all tokens, or for those at some indices alone.

    Args:
        block: A block of CLIP's own kind.
        linear: The product with a weight, PyTorch's own or one that gives the same.
        hidden: What goes into the block.
        mask: What each of the tokens that are put out sees; None for everything.
        indices: Which tokens are put out; None for all.
        attention: The type of attention; None for that of the products.
    """
    keys = block.ln_1(hidden)
    queries = keys
    if indices is not None:
        queries = keys[:, indices]
        hidden = hidden[:, indices]
    hidden = hidden + block.ls_1(_self_attention(block.attn, linear, queries, keys, mask, attention))
    output: Tensor = hidden + block.ls_2(_perceptron(block.mlp, linear, block.ln_2(hidden)))
    return output


def _self_attention(
    layer: nn.MultiheadAttention,
    linear: Linear,
    queries: Tensor,
    keys: Tensor,
    mask: Mask | None,
    dtype: torch.dtype | None,
) -> Tensor:
    width = layer.embed_dim
    weight = layer.in_proj_weight
    bias = layer.in_proj_bias
    if queries is keys:
        # One product for all three is faster than three.
        query, key, value = linear(keys, weight, bias).to(dtype).chunk(3, dim=-1)
    else:
        query = linear(queries, weight[:width], bias[:width]).to(dtype)
        key, value = linear(keys, weight[width:], bias[width:]).to(dtype).chunk(2, dim=-1)
    read = (attend if mask is None else mask.attend)(query, key, value, layer.num_heads)
    return linear(read, layer.out_proj.weight, layer.out_proj.bias)


def _perceptron(perceptron: Any, linear: Linear, hidden: Tensor) -> Tensor:
    first = perceptron.c_fc
    second = perceptron.c_proj
    activate = QuickGELU.apply if isinstance(perceptron.gelu, transformer.QuickGELU) else perceptron.gelu
    return linear(activate(linear(hidden, first.weight, first.bias)), second.weight, second.bias)
