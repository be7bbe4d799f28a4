"""What this machine's processor can do in bfloat16."""

from __future__ import annotations

import torch


def has_bfloat16_tiles() -> bool:
    """Whether it multiplies tiles of bfloat16 (AMX)."""
    return _says_yes("_is_amx_tile_supported")


def has_bfloat16_units() -> bool:
    """Whether it has units for products in bfloat16 (AVX512-BF16 or AMX), without which these are slow."""
    return has_bfloat16_tiles() or _says_yes("_is_avx512_bf16_supported")


def _says_yes(question: str) -> bool:
    """Asks PyTorch about the processor; the questions are private and may be missing, which counts as no."""
    ask = getattr(torch.cpu, question, None)
    return ask is not None and bool(ask())
