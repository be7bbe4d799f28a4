"""The drawings and captions for pretraining the bundled CLIP, and its weights."""

from itertools import combinations

import numpy as np
import pytest
import torch
from open_clip import CLIP
from safetensors.torch import load_file

from experiments.tiny_clip.drawings import (
    ATTRIBUTES,
    PRETRAINING_STYLES,
    STYLES,
    THINGS,
    describe,
    draw,
    is_true,
    pretraining_drawing,
    sample_scene,
    scene_codes,
)
from experiments.tiny_clip.shapes import CLASS_NAMES, Scene, styled_shape, styled_shapes
from fedvlp.clip import loading


def test_styles_differ_and_objects_contrast_with_the_background():
    for thing in THINGS:
        scene = Scene("poster", thing, "plain", "red", "snow", "large")
        image = draw(scene, np.random.default_rng(0)).astype(float)
        off_ground = np.abs(image - image[0, 0]).sum(axis=2) > 90
        assert 0.08 < off_ground.mean() < 0.8
    scenes = [Scene(style, "fish", "striped", "red", "sky", "large") for style in STYLES]
    looks = [draw(scene, np.random.default_rng(0)).astype(float) for scene in scenes]
    assert min(np.abs(one - other).mean() for one, other in combinations(looks, 2)) > 4


def test_pretraining_uses_no_style_of_the_benchmark():
    assert not {"photo", "painting", "cartoon", "sketch"} & set(PRETRAINING_STYLES)
    first, scene = pretraining_drawing(0, 7)
    again, same = pretraining_drawing(0, 7)
    assert np.array_equal(first, again)
    assert scene == same
    assert scene.style in PRETRAINING_STYLES


def test_a_caption_describes_its_own_scene():
    generator = np.random.default_rng(0)
    styles = list(STYLES)
    scenes = [sample_scene(generator, styles[i % len(styles)]) for i in range(60)]
    captions = [describe(scene, generator) for scene in scenes]
    truth = is_true(np.array([c.codes for c in captions]), np.stack([scene_codes(s) for s in scenes]))
    assert truth.diagonal().all()
    assert truth.mean() < 0.5
    for caption, scene in zip(captions, scenes, strict=True):
        assert caption.text
        names_ground = caption.codes[ATTRIBUTES.index("ground")] >= 0
        assert (f"on {scene.ground}" in caption.text) == names_ground


def test_captions_match_scenes_with_all_named_attributes():
    fish = Scene("ink", "fish", "striped", "red", "sky", "large")
    star = Scene("poster", "star", "striped", "red", "sky", "large")
    scenes = np.stack([scene_codes(fish), scene_codes(star)])
    red_striped = np.full((1, 6), -1)
    red_striped[0, [2, 3]] = scene_codes(star)[[2, 3]]
    striped = np.full((1, 6), -1)
    striped[0, 2] = scene_codes(star)[2]
    assert is_true(np.concatenate([red_striped, striped]), scenes).tolist() == [[False, True], [True, True]]


@pytest.mark.parametrize("name", loading.BUNDLED)
def test_bundled_weights_load_strictly_and_reproducibly(name):
    state = loading.bundled_state_dict(name)
    model = CLIP(**loading.bundled_config(name))
    model.load_state_dict(state, strict=True)
    assert all(value.dtype == torch.float32 for value in state.values())
    assert model.encode_image(torch.zeros(2, 3, 64, 64)).shape == model.encode_text(torch.ones(2, 77).long()).shape
    assert sum(file.stat().st_size for file in loading.BUNDLED[name].iterdir()) < 8e6
    again = loading.bundled_state_dict(name)
    assert all(torch.equal(state[key], again[key]) for key in state)


def test_trained_rows_are_placed_by_their_index():
    stored = load_file(loading.BUNDLED["fedvlp-tiny"] / "weights.safetensors")
    weight = loading.expand(stored, 49408)["token_embedding.weight"]
    rows = stored["token_embedding.index"].long()
    assert torch.equal(weight[rows], stored["token_embedding.rows"].float())
    assert weight.std() == pytest.approx(0.02, rel=0.2)


def test_the_drawings_of_the_benchmark_never_change():
    domains = styled_shapes(images_per_class=2)
    means = {domain: images.mean() for domain, (images, _) in domains.items()}
    assert means == pytest.approx(
        {"photo": 115.444, "painting": 139.267, "cartoon": 127.333, "sketch": 211.808}, abs=0.5
    )
    images, labels = domains["cartoon"]
    assert np.array_equal(images[5], styled_shape(0, "cartoon", CLASS_NAMES[labels[5]], 1))
    assert np.bincount(labels).tolist() == [2] * 18
