"""Drawings are the same for the same seed in any order, and balanced."""

from __future__ import annotations

import numpy as np
import pytest

from fedvlp.data.styled_shapes.drawings import CLASS_NAMES, styled_shape, styled_shapes

FROZEN_MEANS = {"photo": 115.444, "painting": 139.267, "cartoon": 127.333, "sketch": 211.808}


@pytest.fixture(scope="module")
def shapes():
    return styled_shapes(images_per_class=2)


def test_every_style_has_every_class_equally_often(shapes):
    assert len(CLASS_NAMES) == 18
    for images, labels in shapes.values():
        assert images.shape == (36, 64, 64, 3)
        assert images.dtype == np.uint8
        assert np.bincount(labels).tolist() == [2] * 18


def test_an_image_depends_on_its_own_numbers_alone(shapes):
    for domain, (images, labels) in reversed(shapes.items()):
        for row in (35, 4, 1):
            assert np.array_equal(images[row], styled_shape(0, domain, CLASS_NAMES[labels[row]], row % 2))


def test_images_and_seeds_differ(shapes):
    images = np.concatenate([images for images, _ in shapes.values()])
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) == len(images)
    name = CLASS_NAMES[0]
    assert not np.array_equal(styled_shape(0, "sketch", name, 0), styled_shape(1, "sketch", name, 0))


def test_the_frozen_benchmark_has_not_moved(shapes):
    means = {domain: images.mean() for domain, (images, _) in shapes.items()}
    assert means == pytest.approx(FROZEN_MEANS, abs=0.5)
