"""Pseudo-random numbers that depend on nothing but what they are for: an image's pixels, a seed, a token's index."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

_GOLDEN = -7046029254386353131  # 2^64 divided by the golden ratio, as a signed number
_FIRST = -4658895280553007687
_SECOND = -7723592293110705685


def mix(numbers: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Returns each 64-bit number scrambled by SplitMix64's finaliser, a bijection: every bit touches all bits."""
    mixed = (numbers ^ _shift_right(numbers, 30)) * _FIRST
    mixed = (mixed ^ _shift_right(mixed, 27)) * _SECOND
    return mixed ^ _shift_right(mixed, 31)


def combine(first: Int[Tensor, "*shape"], second: Int[Tensor, "*shape"] | int) -> Int[Tensor, "*shape"]:
    """Returns a 64-bit number that depends on both numbers and on their order."""
    return mix((mix(first + _GOLDEN) + second) * _GOLDEN)


def image_seeds(images: Float[Tensor, "B 3 height width"]) -> Int[Tensor, "B"]:
    """Returns a 64-bit number for each image that depends on the bits of its float32 pixels and on nothing else.

    The sum runs over whole numbers, so it is the same on every device, in every batch and with every number of threads.
    """
    bits = images.detach().to(torch.float32).contiguous().flatten(1).view(torch.int32).to(torch.int64)  # [B, pixels]
    places = torch.arange(1, bits.shape[1] + 1, device=bits.device)
    return mix((bits * (mix(places * _GOLDEN) | 1)).sum(dim=1))


def random_start(seeds: Int[Tensor, "B"], num_tokens: int, num_clusters: int, seed: int = 0) -> Int[Tensor, "B M"]:
    """Returns M distinct token indices for each image, drawn uniformly from its own seed and the run's.

    Args:
        seeds: One number for each image, as from `image_seeds`.
        num_tokens: P, the number of tokens to draw from.
        num_clusters: M, how many to draw.
        seed: The run's seed; another one gives other draws for all images.
    """
    tokens = torch.arange(num_tokens, device=seeds.device)
    lots = combine(combine(seeds, seed)[:, None] + tokens * _GOLDEN, seed)  # [B, P]
    return lots.argsort(dim=1, stable=True)[:, :num_clusters]


def _shift_right(numbers: Tensor, places: int) -> Tensor:
    """Returns numbers shifted to the right as if they had no sign."""
    return (numbers >> places) & ((1 << (64 - places)) - 1)
