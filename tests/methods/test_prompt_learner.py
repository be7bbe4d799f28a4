"""What a method gets without saying anything: features, a cache that is shared where it may be, prompts by name."""

from __future__ import annotations

import torch
from torch import nn

from fedvlp import PromptedTextEncoder, PromptLearner
from fedvlp.methods import TRIP, PromptFL, ZeroShotCLIP

CLASSES = ["cat", "dog"]


class Smallest(PromptLearner):
    """Two kinds of prompts of three vectors, and parameters that are none."""

    def __init__(self, class_names, clip="ViT-B-16", depth=1, optimizer=None):
        super().__init__(class_names, clip, optimizer)
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=3)
        width = self.clip.text_width
        self.common_prompt = nn.Parameter(torch.zeros(3, width))
        self.experts = nn.Parameter(torch.zeros(2, 3, width))
        self.residual = nn.Parameter(torch.zeros(len(class_names), width))
        self.scale = nn.Parameter(torch.zeros(7))

    def forward(self, inputs):
        return self.precomputed(inputs)["features"][:, :2]

    def training_step(self, batch, batch_idx):
        return self(batch[0]).mean()


class NeedsImages(Smallest):
    needs_images = True


class Doubled(PromptFL):
    """Prepares something of its own, although there is no teacher."""

    def precompute(self, images):
        return {"features": 2 * super().precompute(images)["features"]}


class OtherTeacher(TRIP):
    """Inherits what prepares, and may change what that calls."""


def test_features_are_prepared_unless_images_are_needed(clip, images):
    features = Smallest(CLASSES, clip)
    assert features.precomputes
    assert torch.equal(features.precompute(images)["features"], clip.encode_image(images))
    whole = NeedsImages(CLASSES, clip)
    assert not whole.precomputes
    assert whole.precompute(images) == {"images": images}


def test_the_cache_is_shared_where_features_are_all_there_is(clip):
    key = ZeroShotCLIP(CLASSES, clip).precompute_key()
    assert Smallest(CLASSES, clip).precompute_key() == key
    assert Smallest(["bird"], clip, depth=2).precompute_key() == key
    assert Doubled(CLASSES, clip).precompute_key() != key


def test_an_inherited_prepare_counts_the_source_of_the_subclass(clip):
    assert OtherTeacher(CLASSES, clip).precompute_key() != TRIP(CLASSES, clip).precompute_key()


def test_options_are_recorded_with_which_clip_it_is(clip):
    module = Smallest(CLASSES, clip, depth=3)
    assert module.hparams == {"class_names": CLASSES, "depth": 3, "clip": module.describe()["clip"]}
    assert module.describe()["clip"]["name"] == "fedvlp-tiny"


def test_it_stands_beside_zero_shot_clip(clip):
    baseline = Smallest(CLASSES, clip).baseline()
    assert isinstance(baseline, ZeroShotCLIP)
    assert baseline.clip is clip
    assert baseline.class_names == CLASSES
