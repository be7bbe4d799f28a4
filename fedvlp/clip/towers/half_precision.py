"""What of a frozen block is computed in bfloat16: products with its weights, and attention where that gains.

Tokens between blocks, normalisations and all that learns stay in float32. This file and the types of weights decide;
`multiply` in `packed_weights.py` follows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fedvlp.clip.towers.residual_block import is_standard_block
from fedvlp.utils.processor import has_bfloat16_tiles


def hold_in(block: nn.Module, dtype: torch.dtype) -> None:
    """Rounds the four large weights of a block of CLIP's own kind to a type, in place of what they were.

    Args:
        block: A block; one of another kind stays as it is.
        dtype: Type of the weights, and so of the products with them.
    """
    if not is_standard_block(block):
        return
    for layer, name in _large_weights(block):
        weight = getattr(layer, name).detach().to(dtype)
        setattr(layer, name, nn.Parameter(weight, requires_grad=False))


def is_held(block: Any) -> bool:
    """Whether a block's large weights are of another type than all else of it."""
    return is_standard_block(block) and bool(block.mlp.c_fc.weight.dtype != block.ln_1.weight.dtype)


def attention_dtype(block: Any) -> torch.dtype | None:
    """Returns the type of a block's attention, None for that of its products.

    On processors whose bfloat16 units are AVX512's, the backward pass of PyTorch's attention takes twice as long in
    bfloat16 as in float32; those with AMX, and GPUs, gain.
    """
    if not is_held(block) or block.mlp.c_fc.weight.device.type != "cpu" or has_bfloat16_tiles():
        return None
    dtype: torch.dtype = block.ln_1.weight.dtype
    return dtype


def _large_weights(block: Any) -> Iterator[tuple[nn.Module, str]]:
    """Yields the layers that have a large weight, and its name."""
    yield block.attn, "in_proj_weight"
    yield block.attn.out_proj, "weight"
    yield block.mlp.c_fc, "weight"
    yield block.mlp.c_proj, "weight"
