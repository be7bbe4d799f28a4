"""TRIP's routing in images per second: all images at once, and token after token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.hardware_limits import matrix_rate
from benchmarks.in_subprocess import in_subprocess
from benchmarks.measure import Measurement, measure_for
from benchmarks.sequential import sequential_routing
from benchmarks.tables import Table, number, percent, seconds_with_spread
from fedvlp.methods.trip.clustering import capacity_kmeans, cluster_capacities
from fedvlp.methods.trip.hashing import random_start
from fedvlp.methods.trip.routing import expert_shares, make_keys

SIDES = {"loop over tokens": False, "batched": True}

NOTES = """Routes for training and for evaluation, with 197 tokens of width 768 and 4 experts. The loop follows the
description of the released code, image after image and token after token. The floor is one product of each image's
tokens with themselves, 2 x 197 x 197 x 768 operations, which determines all distances between tokens and centroids, at
the rate of a large float32 product in the same process."""


def tables(quick: bool, figures: Path | None = None) -> Iterator[Table]:
    """Make one table."""
    count = 16 if quick else 128
    floor = 2 * 197**2 * 768
    found = {label: in_subprocess(measure_side, batched=batched, count=count) for label, batched in SIDES.items()}
    first = found["loop over tokens"][0].median
    rows = []
    for label, (measurement, rate) in found.items():
        median = measurement.median
        numbers = [number(count / median), number(first / median), percent(floor * count / rate / median)]
        rows.append([label, *seconds_with_spread(measurement.seconds), *numbers, number(measurement.megabytes)])
    header = ("", "seconds", "least to greatest", "repeats", "images a second", "times faster", "of the floor", "MB")
    yield Table(f"routing: {count} images", header, rows)


def measure_side(batched: bool, count: int) -> tuple[Measurement, float]:
    """Measure one side in this process, and the rate of a large product."""
    return measure_for(RoutingCase(batched, count), seconds=5.0), matrix_rate()


class RoutingCase:
    """Routing weights of a batch of images, with TRIP's capacity factors 1 for training and 2 for evaluation.

    Tokens are made up, in the shape of ViT-B/16's: a class token and 196 others that vary smoothly over the image.

    Args:
        batched: Whether images are routed together, or one by one, token after token in a Python loop.
        num_images: B.
    """

    def __init__(self, batched: bool, num_images: int) -> None:
        self._tokens = smooth_tokens(num_images)
        self._start = random_start(torch.arange(num_images), 197, 4)
        self._keys = make_keys("orthogonal", 4, 768, seed=0)
        self._batched = batched

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Compute the routing weights for training and evaluation."""
        return self._route(1.0), self._route(2.0)

    def _route(self, capacity: float) -> Tensor:
        capacities = cluster_capacities(197, 4, capacity)
        if self._batched:
            return expert_shares(capacity_kmeans(self._tokens, self._start, capacities), self._keys)
        images = zip(self._tokens, self._start, strict=True)
        return torch.stack([sequential_routing(tokens, start, capacities, self._keys) for tokens, start in images])


def smooth_tokens(num_images: int, num_waves: int = 12) -> Tensor:
    """Generate tokens [B, 197, 768]: directions, each weighted by a wave over the 14 x 14 patches, and noise.

    Args:
        num_images: B.
        num_waves: Number of directions in each image.
    """
    generator = torch.Generator().manual_seed(0)
    rows, columns = torch.meshgrid(torch.linspace(0, 1, 14), torch.linspace(0, 1, 14), indexing="ij")
    places = torch.stack([rows.flatten(), columns.flatten()])  # [2, 196]
    angles = 3 * torch.pi * torch.randn(num_images, num_waves, 2, generator=generator) @ places
    waves = torch.cos(angles + 2 * torch.pi * torch.rand(num_images, num_waves, 1, generator=generator))
    directions = torch.randn(num_images, num_waves, 768, generator=generator) / num_waves**0.5
    patches = waves.transpose(1, 2) @ directions  # [B, 196, 768]
    tokens = torch.cat([patches.mean(dim=1, keepdim=True), patches], dim=1)
    return tokens + torch.randn(tokens.shape, generator=generator)
