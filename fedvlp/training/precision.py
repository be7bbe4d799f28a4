"""Which arithmetic the frozen towers have, where the user leaves it to the machine."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
"""Lightning's names of arithmetics."""
AskedPrecision = Literal["32-true", "bf16-mixed", "16-mixed", "auto"]
"""What may be asked for: one of them, or the hardware's choice."""


class PrecisionChoice(NamedTuple):
    """An arithmetic, and why it was chosen."""

    name: Precision
    reason: str


def choose_precision(asked: AskedPrecision, accelerator: str) -> PrecisionChoice:
    """Returns what was asked for; for ``auto``, bfloat16 where the hardware multiplies it faster than float32.

    The hardware alone decides, and no measurement: the same machine gives the same results whatever else it does.

    Args:
        asked: the arithmetic, or ``auto``.
        accelerator: Lightning's name of the hardware, or ``auto`` for what Lightning would take.
    """
    if asked != "auto":
        return PrecisionChoice(asked, "")
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return PrecisionChoice("bf16-mixed", "this GPU multiplies bfloat16")
        return PrecisionChoice("32-true", "this GPU does not multiply bfloat16")
    on_cpu = accelerator == "cpu" or (accelerator == "auto" and not torch.backends.mps.is_available())
    if not on_cpu:
        return PrecisionChoice("32-true", "bfloat16 was tried on processors and CUDA alone")
    units = bfloat16_units()
    if not units:
        return PrecisionChoice("32-true", "this processor has no units for bfloat16")
    return PrecisionChoice("bf16-mixed", f"this processor multiplies bfloat16 by {units}")


def bfloat16_units() -> str:
    """Returns by what the processor multiplies bfloat16, ``AMX`` or ``AVX512-BF16``; empty if that is slow."""
    # PyTorch's questions are private; where one is missing, the answer counts as no.
    for kind, question in (("AMX", "_is_amx_tile_supported"), ("AVX512-BF16", "_is_avx512_bf16_supported")):
        if getattr(torch.cpu, question, bool)():
            return kind
    return ""
