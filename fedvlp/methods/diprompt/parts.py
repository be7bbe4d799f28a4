"""The parts of DiPrompT: which can be left out, what its prompts start from, and how the server combines them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import nn

from fedvlp.clip import PromptedTextEncoder
from fedvlp.core.strategies import FedAvg, IndicatorMean, MovingAverage, Strategy
from fedvlp.utils.errors import UserError

Part = Literal["global_prompt", "domain_prompts", "query_prompt", "contrast", "mse", "kl", "ensemble"]


def check_options(without: Sequence[str]) -> set[str]:
    """Returns the parts that are left out.

    Raises:
        UserError: if there is no such part or no prompt left.

    >>> sorted(check_options(["mse", "kl"]))
    ['kl', 'mse']
    """
    parts = get_args(Part)
    left_out = set(without)
    if left_out - set(parts) or left_out >= {"global_prompt", "domain_prompts"}:
        raise UserError(
            f"Expected parts of DiPrompT to leave out ({', '.join(parts)}), but not both global and domain prompts; "
            f"got {', '.join(without)}. Correct --model.without."
        )
    return left_out


def starting_prompts(text: PromptedTextEncoder, num_domains: int) -> dict[str, nn.Parameter]:
    """Returns V^G [L, D], V^D [M, L, D] and V^Q [L, D]: random vectors, V^Q beginning with "a photo of a"."""
    common, *own = (text.initial_prompt() for _ in range(1 + num_domains))
    return {
        "global_prompt": nn.Parameter(common),
        "domain_prompts": nn.Parameter(torch.stack(own)),
        "query_prompt": nn.Parameter(text.initial_prompt("a photo of a")),
    }


def server_strategies(share: Callable[[int], float]) -> dict[str, Strategy]:
    """Returns how each prompt is combined: the mean for V^G; for V^D Eqs. 4 and 5; for V^Q the mean and Eq. 5.

    Args:
        share: The newest prompts' share in their average over rounds.
    """
    return {
        "global_prompt": FedAvg(),
        "domain_prompts": MovingAverage(IndicatorMean(), share, ("domain_prompts",), sends_average=True),
        "query_prompt": MovingAverage(FedAvg(), share, ("query_prompt",), sends_average=True),
    }
