"""The choice of attacked images, and similarities of recovered images against their definitions."""

import math

import pytest
import torch

from fedvlp.tools.audit.attack import choose_targets, other_images, similarities
from fedvlp.tools.audit.inversion import InversionOptions
from fedvlp.tools.trained_run import pixel_scale, read_pixels, training_images
from fedvlp.utils.errors import UserError


def test_targets_alternate_between_clients_without_repetition(folders):
    images = training_images(folders())
    options = InversionOptions(gradients=5, images=2)
    targets = choose_targets(images, options, seed=1)
    assert [client.name for client, _ in targets] == ["ink", "paint", "ink", "paint", "ink"]
    assert len({image.name for _, client_images in targets[::2] for image in client_images}) == 6
    assert choose_targets(images, options, seed=1) == targets
    assert choose_targets(images, options, seed=2) != targets


def test_each_target_is_compared_with_another_image_of_its_class(folders):
    images = training_images(folders())
    everything = [image for client_images in images.values() for image in client_images]
    pixels = read_pixels(everything)
    for _, chosen in choose_targets(images, InversionOptions(gradients=4, images=2), seed=3):
        others = other_images(images, chosen, seed=4)
        for target, other in zip(chosen, others, strict=True):
            same = [index for index, image in enumerate(pixels) if torch.equal(image, other)]
            assert any(everything[index].label == target.label for index in same)
            assert all(everything[index] is not target for index in same)


def test_more_images_than_a_client_has_are_rejected(folders):
    with pytest.raises(UserError, match=r"'ink' has 9 training images, but inversion\.images"):
        choose_targets(training_images(folders()), InversionOptions(images=10), seed=0)


def normalised(clip, pixels):
    mean, deviation = pixel_scale(clip, pixels)
    return (pixels - mean) / deviation


def random_pixels(seed):
    return torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(seed))


def test_similarities_are_computed_from_pixels(clip):
    one, other = random_pixels(0), random_pixels(1)
    rows = similarities(clip, normalised(clip, one), normalised(clip, other))
    for row, a, b in zip(rows, one.numpy(), other.numpy(), strict=True):
        error = float(((a - b) ** 2).mean())
        assert row["mse"] == pytest.approx(error, rel=1e-4)
        assert row["psnr"] == pytest.approx(-10 * math.log10(error), rel=1e-4)
        assert abs(row["ssim"]) < 0.1
    features = [clip.encode_image(normalised(clip, each))[1] for each in (one, other)]
    assert rows[1]["feature_cosine"] == pytest.approx(torch.cosine_similarity(*features, dim=0).item(), abs=1e-5)
