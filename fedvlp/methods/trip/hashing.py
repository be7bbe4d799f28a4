"""Pseudo-random numbers that depend on nothing but what they are for: an image's pixels, a seed, a token's index."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

_GOLDEN = -7046029254386353131  # 2^64 divided by the golden ratio, as a signed number
_FIRST = -4658895280553007687
_SECOND = -7723592293110705685


def mix(numbers: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Return each 64-bit number scrambled by SplitMix64's finaliser, a bijection: every bit touches all bits."""
    mixed = (numbers ^ _shift_right(numbers, 30)) * _FIRST
    mixed = (mixed ^ _shift_right(mixed, 27)) * _SECOND
    return mixed ^ _shift_right(mixed, 31)


def combine(first: Int[Tensor, "*shape"], second: Int[Tensor, "*shape"] | int) -> Int[Tensor, "*shape"]:
    """Return a 64-bit number that depends on both numbers and on their order."""
    return mix((mix(first + _GOLDEN) + second) * _GOLDEN)


def image_seeds(images: Float[Tensor, "B 3 V V"]) -> Int[Tensor, "B"]:
    """Return a 64-bit number for each image that depends on the bits of its float32 pixels and on nothing else.

    The sum runs over whole numbers, so it is the same on every device, in every batch and with every number of threads.
    """
    pixels = images.detach().to(torch.float32).contiguous().flatten(1)  # [B, pixels]
    places = torch.arange(1, pixels.shape[1] + 1, device=pixels.device)
    # An odd factor for each place: multiplying by it loses no bit of the pixel.
    factors = mix(places * _GOLDEN) | 1
    return mix(weighted_bits(pixels, factors))


def weighted_bits(pixels: Float[Tensor, "B pixels"], factors: Int[Tensor, "pixels"]) -> Int[Tensor, "B"]:
    """Sum each image's pixels, taken as whole numbers of 32 bits, by their factors."""
    return (pixels.view(torch.int32).to(torch.int64) * factors).sum(dim=1)


def random_bits(seeds: Int[Tensor, "B"], count: int, seed: int = 0) -> Int[Tensor, "B count"]:
    """Return 64-bit numbers for each image, drawn from its own seed and the run's."""
    # Each draw hashes its own number, so that any part of them can be made alone.
    places = torch.arange(count, device=seeds.device)
    return combine(combine(seeds, seed)[:, None] + places * _GOLDEN, seed)


def random_uniforms(seeds: Int[Tensor, "B"], count: int, seed: int = 0) -> Float[Tensor, "B count"]:
    """Compute numbers of double precision, uniform in (0, 1), for each image, from its own seed and the run's."""
    return (_shift_right(random_bits(seeds, count, seed), 12).double() + 0.5) * 2.0**-52


def random_start(seeds: Int[Tensor, "B"], num_tokens: int, num_clusters: int, seed: int = 0) -> Int[Tensor, "B M"]:
    """Return M distinct indices of P tokens for each image, drawn uniformly from its own seed and the run's."""
    return random_bits(seeds, num_tokens, seed).argsort(dim=1, stable=True)[:, :num_clusters]


def random_shares(seeds: Int[Tensor, "B"], num_experts: int, seed: int = 0) -> Float[Tensor, "B E"]:
    """Compute shares of experts for each image, uniform among all that sum to one, from its own seed and the run's."""
    lots = -random_uniforms(seeds, num_experts, seed).log()
    return (lots / lots.sum(dim=1, keepdim=True)).float()


def random_token_shares(
    seeds: Int[Tensor, "B"], num_tokens: int, num_experts: int, seed: int = 0
) -> Float[Tensor, "B E"]:
    """Compute each expert's share of an image's tokens when every token draws its expert uniformly."""
    experts = (random_uniforms(seeds, num_tokens, seed) * num_experts).long()  # [B, P]
    return F.one_hot(experts, num_experts).float().mean(dim=1)


def _shift_right(numbers: Tensor, places: int) -> Tensor:
    """Numbers shifted to the right as if they had no sign."""
    # PyTorch's own shift of a signed number fills in its sign.
    return (numbers >> places) & ((1 << (64 - places)) - 1)
