"""The transform that a config beside a weights file asks for."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from fedvlp.clip import CLIPSpec, load_clip
from fedvlp.utils.errors import UserError

NAME = "small"
PUBLISHED = {
    "mean": [0.5, 0.4, 0.3],
    "std": [0.5, 0.6, 0.7],
    "interpolation": "bilinear",
    "resize_mode": "squash",
    "size": [32, 32],
    "fill_color": None,
}


@pytest.fixture
def picture():
    values = np.random.default_rng(0).integers(0, 256, (50, 90, 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.fixture
def load(small, tmp_path, save):
    """Loads weights with this preprocess_cfg in the config beside them; with None without a config."""

    def load_with(published):
        path = save(small, tmp_path / "w.safetensors")
        if published is not None:
            content = {"model_cfg": {"quick_gelu": False}, "preprocess_cfg": published}
            (tmp_path / "open_clip_config.json").write_text(json.dumps(content))
        return load_clip(CLIPSpec(NAME, path))

    return load_with


def test_a_config_beside_the_file_says_its_transform(load, picture):
    """Squashed by Pillow itself, pixel by pixel less the mean and over the deviation."""
    squashed = np.asarray(picture.resize((32, 32), Image.Resampling.BILINEAR), dtype=np.float64) / 255
    expected = np.zeros((3, 32, 32))
    for colour in range(3):
        expected[colour] = (squashed[..., colour] - PUBLISHED["mean"][colour]) / PUBLISHED["std"][colour]
    found = load(PUBLISHED).preprocess(picture)
    torch.testing.assert_close(found.double(), torch.from_numpy(expected), atol=1e-5, rtol=0)


def test_its_augmentation_has_the_same_mean_and_deviation(load):
    grey = Image.new("RGB", (40, 40), (128, 128, 128))
    found = load(PUBLISHED).train_preprocess(grey)
    expected = [(128 / 255 - mean) / std for mean, std in zip(PUBLISHED["mean"], PUBLISHED["std"], strict=True)]
    torch.testing.assert_close(found.amax((1, 2)), torch.tensor(expected), atol=1e-5, rtol=0)


def test_clips_own_transform_in_words_is_clips_own(load):
    plain = load(None)
    own = {"mean": list(plain.preprocess_options.mean), "std": list(plain.preprocess_options.std), "mode": "RGB"}
    same = load(own)
    assert same.preprocess_options == plain.preprocess_options
    assert same.fingerprint() == plain.fingerprint()
    assert load({**own, "resize_mode": "longest"}).fingerprint() != plain.fingerprint()


@pytest.mark.parametrize(
    ("published", "message"),
    [
        ({"interpolation": "nearest"}, "interpolation 'nearest', but expected was bicubic or bilinear"),
        ({"size": 48}, "size 48, but expected was 32"),
    ],
)
def test_what_cannot_be_honoured_is_refused(load, published, message):
    with pytest.raises(UserError, match=rf"w\.safetensors has .*{message}"):
        load(published)


def test_other_keys_are_ignored(load):
    published = load({"std": None, "crop_pct": 0.9, "size": None}).preprocess_options
    assert published == load(None).preprocess_options


def test_a_damaged_config_is_refused(load, tmp_path):
    (tmp_path / "open_clip_config.json").write_text("{")
    with pytest.raises(UserError, match=r"open_clip_config\.json"):
        load(None)
