"""Pseudo-random numbers that depend only on an image's pixels, a seed and a token's index."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

_GOLDEN = -7046029254386353131  # 2^64 divided by the golden ratio, as a signed number
_FIRST = -4658895280553007687
_SECOND = -7723592293110705685


def mix(numbers: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Scramble each 64-bit number with SplitMix64's finaliser, a bijection: every bit affects all bits."""
    mixed = (numbers ^ _shift_right(numbers, 30)) * _FIRST
    mixed = (mixed ^ _shift_right(mixed, 27)) * _SECOND
    return mixed ^ _shift_right(mixed, 31)


def combine(first: Int[Tensor, "*shape"], second: Int[Tensor, "*shape"] | int) -> Int[Tensor, "*shape"]:
    """Hash two numbers into a 64-bit number that also depends on their order."""
    return mix((mix(first + _GOLDEN) + second) * _GOLDEN)


def image_seeds(images: Float[Tensor, "B 3 V V"]) -> Int[Tensor, "B"]:
    """Hash the float32 pixels of each image into a 64-bit number.

    The sum uses integers, so the result does not depend on the device, the batch or the number of threads.
    """
    pixels = images.detach().to(torch.float32).contiguous().flatten(1)  # [B, pixels]
    positions = torch.arange(1, pixels.shape[1] + 1, device=pixels.device)
    # Multiplying by an odd factor loses no bit of the pixel.
    factors = mix(positions * _GOLDEN) | 1
    return mix(weighted_bits(pixels, factors))


def weighted_bits(pixels: Float[Tensor, "B pixels"], factors: Int[Tensor, "pixels"]) -> Int[Tensor, "B"]:
    """Sum each image's pixels, read as 32-bit integers, times their factors."""
    return (pixels.view(torch.int32).to(torch.int64) * factors).sum(dim=1)


def random_bits(seeds: Int[Tensor, "B"], count: int, seed: int = 0) -> Int[Tensor, "B count"]:
    """Draw 64-bit numbers for each image from its seed and the run's seed."""
    # Each draw hashes its own index, so any subset can be computed separately.
    indices = torch.arange(count, device=seeds.device)
    return combine(combine(seeds, seed)[:, None] + indices * _GOLDEN, seed)


def random_uniforms(seeds: Int[Tensor, "B"], count: int, seed: int = 0) -> Float[Tensor, "B count"]:
    """Draw double-precision numbers, uniform in (0, 1), for each image from its seed and the run's seed."""
    return (_shift_right(random_bits(seeds, count, seed), 12).double() + 0.5) * 2.0**-52


def random_start(seeds: Int[Tensor, "B"], num_tokens: int, num_clusters: int, seed: int = 0) -> Int[Tensor, "B M"]:
    """Draw M distinct indices of P tokens uniformly for each image from its seed and the run's seed."""
    return random_bits(seeds, num_tokens, seed).argsort(dim=1, stable=True)[:, :num_clusters]


def random_shares(seeds: Int[Tensor, "B"], num_experts: int, seed: int = 0) -> Float[Tensor, "B E"]:
    """Draw each image's expert shares, uniform among all that sum to 1, from its seed and the run's seed."""
    exponentials = -random_uniforms(seeds, num_experts, seed).log()
    return (exponentials / exponentials.sum(dim=1, keepdim=True)).float()


def random_token_shares(
    seeds: Int[Tensor, "B"], num_tokens: int, num_experts: int, seed: int = 0
) -> Float[Tensor, "B E"]:
    """Draw an expert uniformly for every token, and compute each expert's share of the image's tokens."""
    experts = (random_uniforms(seeds, num_tokens, seed) * num_experts).long()  # [B, P]
    return F.one_hot(experts, num_experts).float().mean(dim=1)


def _shift_right(numbers: Tensor, places: int) -> Tensor:
    """Shift to the right as if the numbers had no sign."""
    # PyTorch's shift of signed numbers fills in the sign bit.
    return (numbers >> places) & ((1 << (64 - places)) - 1)
