"""Drawings are the same for the same seed in any order, balanced, and the bundled CLIP that saw them loads."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from open_clip import CLIP
from safetensors.torch import load_file

from fedvlp.clip import loading
from fedvlp.data.styled_shapes.drawings import (
    PRETRAINING_STYLES,
    STYLES,
    Scene,
    StyledShapesImages,
    describe,
    draw,
    is_true,
    pretraining_drawing,
    sample_scene,
    scene_codes,
    styled_shape,
    styled_shapes,
)
from fedvlp.data.styled_shapes.drawings.benchmark import ATTRIBUTES
from fedvlp.data.styled_shapes.drawings.things import THINGS

FROZEN_MEANS = {"photo": 115.444, "painting": 139.267, "cartoon": 127.333, "sketch": 211.808}


@pytest.fixture(scope="module")
def shapes() -> StyledShapesImages:
    return styled_shapes(images_per_class=2)


def test_every_style_has_every_class_equally_often(shapes: StyledShapesImages) -> None:
    assert len(shapes.class_names) >= 10
    assert len(shapes.domains) >= 4
    for images, labels in shapes.domains.values():
        assert images.shape == (2 * len(shapes.class_names), 64, 64, 3)
        assert images.dtype == np.uint8
        assert np.bincount(labels).tolist() == [2] * len(shapes.class_names)


def test_an_image_depends_on_its_own_numbers_alone(shapes: StyledShapesImages) -> None:
    for domain, (images, labels) in reversed(shapes.domains.items()):
        for row in (len(labels) - 1, 4, 1):
            alone = styled_shape(0, domain, shapes.class_names[labels[row]], row % 2)
            assert np.array_equal(images[row], alone)


def test_images_and_seeds_differ(shapes: StyledShapesImages) -> None:
    images = np.concatenate([images for images, _ in shapes.domains.values()])
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) == len(images)
    name = shapes.class_names[0]
    assert not np.array_equal(styled_shape(0, "sketch", name, 0), styled_shape(1, "sketch", name, 0))


def test_the_frozen_benchmark_has_not_moved(shapes: StyledShapesImages) -> None:
    means = {domain: images.mean() for domain, (images, _) in shapes.domains.items()}
    assert means == pytest.approx(FROZEN_MEANS, abs=0.5)


def test_styles_look_different_and_things_stand_out() -> None:
    for thing in THINGS:
        scene = Scene("poster", thing, "plain", "red", "snow", "large")
        image = draw(scene, np.random.default_rng(0)).astype(float)
        off_ground = np.abs(image - image[0, 0]).sum(axis=2) > 90
        assert 0.08 < off_ground.mean() < 0.8
    scenes = [Scene(style, "fish", "striped", "red", "sky", "large") for style in STYLES]
    looks = [draw(scene, np.random.default_rng(0)).astype(float) for scene in scenes]
    assert min(np.abs(one - other).mean() for one, other in combinations(looks, 2)) > 4


def test_pretraining_never_sees_the_unseen_styles() -> None:
    assert not {"photo", "painting", "cartoon", "sketch"} & set(PRETRAINING_STYLES)
    first, scene = pretraining_drawing(0, 7)
    again, same = pretraining_drawing(0, 7)
    assert np.array_equal(first, again)
    assert scene == same
    assert scene.style in PRETRAINING_STYLES


def test_a_caption_is_true_of_its_own_scene_and_names_what_it_says() -> None:
    generator = np.random.default_rng(0)
    scenes = [sample_scene(generator, STYLES[i % len(STYLES)]) for i in range(60)]
    captions = [describe(scene, generator) for scene in scenes]
    truth = is_true(np.array([c.codes for c in captions]), np.stack([scene_codes(s) for s in scenes]))
    assert truth.diagonal().all()
    assert truth.mean() < 0.5
    for caption, scene in zip(captions, scenes, strict=True):
        assert caption.text
        named = caption.codes[ATTRIBUTES.index("ground")] >= 0
        assert (f"on {scene.ground}" in caption.text) == named


def test_truth_by_hand() -> None:
    fish = Scene("ink", "fish", "striped", "red", "sky", "large")
    star = Scene("poster", "star", "striped", "red", "sky", "large")
    scenes = np.stack([scene_codes(fish), scene_codes(star)])
    red_striped = np.full((1, 6), -1)
    red_striped[0, [2, 3]] = scene_codes(star)[[2, 3]]
    striped = np.full((1, 6), -1)
    striped[0, 2] = scene_codes(star)[2]
    assert is_true(np.concatenate([red_striped, striped]), scenes).tolist() == [[False, True], [True, True]]


def test_bundled_weights_load_strictly_and_give_patch_tokens() -> None:
    model = CLIP(**loading.bundled_config())
    model.load_state_dict(loading.bundled_state_dict(), strict=True)
    assert all(value.dtype == torch.float32 for value in loading.bundled_state_dict().values())
    assert model.encode_image(torch.zeros(2, 3, 64, 64)).shape == (2, model.visual.output_dim)
    assert model.visual.positional_embedding.shape[0] == 65


def test_bundled_weights_are_small_and_the_same_at_each_load() -> None:
    folder = loading.TINY_FOLDER
    assert sum(file.stat().st_size for file in folder.iterdir()) < 8e6
    first = loading.bundled_state_dict()
    second = loading.bundled_state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_trained_rows_are_put_where_they_belong() -> None:
    stored = load_file(loading.TINY_FOLDER / "weights.safetensors")
    weight = loading.expand(stored, 49408)["token_embedding.weight"]
    rows = stored["token_embedding.index"].long()
    assert torch.equal(weight[rows], stored["token_embedding.rows"].float())
    assert weight.std() == pytest.approx(0.02, rel=0.2)
