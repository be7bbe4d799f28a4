from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from fedvlp.data import DomainFolders
from fedvlp.tools.explain.samples import read_samples, run_images, samples_of_files, spread, visible
from tests.helpers.images import CLASSES


def data_of(image_root, clip, **options):
    data = DomainFolders(str(image_root), cache_dir=None, **options)
    data.setup()
    data.bind(clip.preprocess)
    return data


@pytest.mark.parametrize(
    ("options", "domains"),
    [
        ({"held_out": "photo"}, {"photo"}),
        ({"held_out": ["photo", "ink"], "test_fraction": 0.3}, {"photo", "ink"}),
        ({"test_fraction": 0.3}, {"ink", "paint", "photo"}),
        ({}, {"ink", "paint", "photo"}),
    ],
)
def test_images_that_nobody_trained_on(image_root, clip, options, domains):
    data = data_of(image_root, clip, **options)
    images = run_images(data, 6)
    assert len(images) == 6
    assert {image.domain for image in images} == domains
    trained = set()
    for entry in data.split_table():
        if entry["role"] == "train":
            trained.update(entry["images"])
    samples = read_samples(images)
    for place, name in enumerate(samples.names):
        assert name not in trained
        path = image_root / name if (image_root / name).exists() else image_root / samples.domains[place] / name
        assert CLASSES[samples.labels[place]] in path.parts
        torch.testing.assert_close(samples.pixels[place], clip.preprocess(Image.open(path).convert("RGB")))
    everything = run_images(data, 1000)
    assert len({(image.domain, image.name) for image in everything}) == len(everything) > 6


def test_spread_is_even():
    for total in range(1, 12):
        for count in range(1, 14):
            places = spread(total, count)
            assert places == sorted(set(places))
            assert len(places) == min(total, count)
            assert set(places) <= set(range(total))


def test_files_have_names_and_no_labels(image_root, clip):
    samples = samples_of_files([str(image_root / "ink" / "star")], clip)
    assert len(samples) == 4
    assert set(samples.labels.tolist()) == {-1}
    assert samples.title(1, CLASSES) == "1.png"
    assert samples.part(1, 3).names == samples.names[1:3]


def test_visible_undoes_the_transform(clip):
    pixels = np.random.default_rng(0).integers(0, 256, (clip.image_size, clip.image_size, 3), dtype=np.uint8)
    shown = visible(clip, clip.preprocess(Image.fromarray(pixels))[None])
    np.testing.assert_allclose(shown[0], pixels / 255, atol=1e-5)
