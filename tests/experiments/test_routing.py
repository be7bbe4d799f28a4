"""Measurements of TRIP's routes, against values computed image by image."""

import numpy as np
import pytest
import torch

from experiments.routing.compare import COLUMNS, images_of, line
from experiments.routing.measures import route_measurements
from fedvlp import TRIP
from fedvlp.data import DomainFolders

CLASSES = ["red circle", "star", "big square"]


@pytest.fixture
def batches(clip):
    generator = torch.Generator().manual_seed(1)
    shape = (5, 3, clip.image_size, clip.image_size)
    return [torch.randn(shape, generator=generator) for _ in range(2)]


def test_measurements_match_values_computed_image_by_image(clip, batches):
    module = TRIP(CLASSES, clip, num_experts=3, prompt_length=2)
    measured = route_measurements(module, batches)
    assert list(measured) == ["train", "eval"]
    module.router.seed = 1
    reseeded = [module.precompute(batch) for batch in batches]
    module.router.seed = 0
    constants = [module.precompute(batch) for batch in batches]
    flipped = [module.precompute(batch.flip(-1)) for batch in batches]
    for mode, row in measured.items():
        weights = np.concatenate([found[f"{mode}_weights"].numpy() for found in constants])
        other = np.concatenate([found[f"{mode}_weights"].numpy() for found in reseeded])
        mirror = np.concatenate([found[f"{mode}_weights"].numpy() for found in flipped])
        share_routed = np.concatenate([found[f"{mode}_kept"].numpy() for found in constants])
        largest = np.bincount(weights.argmax(1), minlength=3) / len(weights)
        each = [np.corrcoef(weights[:, m], other[:, m])[0, 1] for m in range(3)]
        mirrored = [np.corrcoef(weights[:, m], mirror[:, m])[0, 1] for m in range(3)]
        assert row["dropped"] == pytest.approx(1 - share_routed.mean(), abs=1e-6)
        assert row["seeds r"] == pytest.approx(np.mean(each), abs=1e-5)
        assert row["seeds same"] == pytest.approx((weights.argmax(1) == other.argmax(1)).mean())
        assert row["chance same"] == pytest.approx((largest**2).sum())
        assert row["mirror r"] == pytest.approx(np.mean(mirrored), abs=1e-5)
        assert row["mirror same"] == pytest.approx((weights.argmax(1) == mirror.argmax(1)).mean())
        assert row["spread"] == pytest.approx(weights.std(0).mean(), abs=1e-6)


def test_fixed_uniform_and_unlimited_routing(clip, batches):
    keyed = route_measurements(TRIP(CLASSES, clip, num_experts=3, prompt_length=2, cluster_start="keys"), batches)
    assert all(row["seeds r"] == pytest.approx(1) and row["seeds same"] == 1 for row in keyed.values())
    uniform = route_measurements(TRIP(CLASSES, clip, num_experts=3, prompt_length=2, routing="uniform"), batches)
    assert all(row["seeds r"] is None and row["spread"] == 0 for row in uniform.values())
    unlimited = TRIP(CLASSES, clip, num_experts=3, prompt_length=2, train_capacity=None)
    assert route_measurements(unlimited, batches)["train"]["dropped"] == 0


def test_measuring_does_not_change_the_module(clip, batches):
    module = TRIP(CLASSES, clip, num_experts=3, prompt_length=2)
    module.train()
    route_measurements(module, batches)
    assert module.router.training
    assert module.router.seed == 0


def test_all_images_of_the_held_out_domain_are_used(clip, image_root):
    data = DomainFolders(str(image_root), held_out="photo", cache_dir=None)
    data.setup()
    module = TRIP(data.class_names, clip, num_experts=2, prompt_length=1)
    images = torch.cat(list(images_of(data, module)))
    assert len(images) == len(list((image_root / "photo").rglob("*.png")))
    rows = [{**dict.fromkeys(COLUMNS, 0.25), "seeds r": value} for value in (0.5, None)]
    assert line("keys", "eval", rows) == "| keys | eval | 0.25 | 0.50 | 0.25 | 0.25 | 0.25 | 0.25 | 0.25 |"
