"""Likeness of images against its definition."""

from __future__ import annotations

import math

import pytest
import torch

from fedvlp.tools.audit.similarity import normalised, pictures, pixel_bounds, similarities


def shown(seed):
    return torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(seed))


def test_errors_are_those_of_pixels(clip):
    one, other = shown(0), shown(1)
    rows = similarities(clip, normalised(clip, one), normalised(clip, other))
    for row, a, b in zip(rows, one.numpy(), other.numpy(), strict=True):
        error = float(((a - b) ** 2).mean())
        assert row["mse"] == pytest.approx(error, rel=1e-4)
        assert row["psnr"] == pytest.approx(-10 * math.log10(error), rel=1e-4)
        assert abs(row["ssim"]) < 0.1
    features = [clip.encode_image(normalised(clip, each))[1] for each in (one, other)]
    assert rows[1]["feature_cosine"] == pytest.approx(torch.cosine_similarity(*features, dim=0).item(), abs=1e-5)


def test_likeness_is_mutual_and_of_an_image_to_itself_complete(clip):
    one, other = normalised(clip, shown(2)), normalised(clip, shown(3))
    there, back = similarities(clip, one, other), similarities(clip, other, one)
    for row, reverse in zip(there, back, strict=True):
        assert row == pytest.approx(reverse, abs=1e-4)
    (same,) = similarities(clip, one[:1], one[:1])
    assert same == pytest.approx({"mse": 0, "psnr": 100, "ssim": 1, "feature_cosine": 1}, abs=1e-5)


def test_a_little_noise_costs_less_than_much(clip):
    image = shown(4)
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(5))
    little, much = (
        similarities(clip, normalised(clip, image + by * noise), normalised(clip, image)) for by in (0.02, 0.3)
    )
    for near, far in zip(little, much, strict=True):
        assert near["ssim"] > far["ssim"] + 0.2
        assert near["psnr"] > far["psnr"] + 5


def test_pixels_go_there_and_back_and_stay_in_their_range(clip):
    image = shown(6)
    assert torch.allclose(pictures(clip, normalised(clip, image)), image, atol=1e-6)
    low, high = pixel_bounds(clip, image)
    ends = torch.stack([low.expand(3, 4, 4), high.expand(3, 4, 4)])
    assert pictures(clip, ends).flatten(1).mean(1).tolist() == pytest.approx([0, 1], abs=1e-6)
    assert pictures(clip, 9 * ends).max() == 1
