"""Defaults of PromptLearner: cached features, caches shared between methods, options and baseline."""

import pytest
import torch
from torch import nn

from fedvlp import (
    CLIP,
    DPFPL,
    TRIP,
    DiPrompT,
    FedPGP,
    FedPHA,
    PromptedTextEncoder,
    PromptFL,
    PromptFolio,
    PromptLearner,
    SingleDomain,
    ZeroShotCLIP,
)
from tests.helpers.runs import make_run
from tests.helpers.slow import spread

CLASSES = ["cat", "dog"]
SHORT = ("--model.templates=1", "--trainer.rounds=1", "--trainer.local.epochs=1", "--trainer.local.steps=1")
SHORT += ("--trainer.runtime.default_callbacks=false", "--trainer.baselines=[]")


class Smallest(PromptLearner):
    """A method with two kinds of prompts of three vectors, and parameters that are not prompts."""

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
    """Precomputes different features, even without a teacher."""

    def precompute(self, images):
        return {"features": 2 * super().precompute(images)["features"]}


class Changed(Doubled):
    """A newer version that precomputes different features."""

    precompute_version = 2
    precompute_options = ()


def test_features_are_precomputed_unless_images_are_needed(clip, images):
    features = Smallest(CLASSES, clip)
    assert features.precomputes
    assert torch.equal(features.precompute(images)["features"], clip.encode_image(images))
    whole = NeedsImages(CLASSES, clip)
    assert not whole.precomputes
    assert whole.precompute(images) == {"images": images}


def test_methods_with_equal_precomputation_share_a_cache(clip):
    plain = [ZeroShotCLIP(CLASSES, clip), Smallest(["bird"], clip, depth=2), PromptFL(CLASSES, clip, kl_weight=0.5)]
    plain += [SingleDomain(CLASSES, clip), DiPrompT(CLASSES, ["x", "y"], clip)]
    trip = [TRIP(CLASSES, clip), TRIP(["bird"], clip, kl_weight=0, prompt_length=4, templates=1)]
    doubled = [Doubled(CLASSES, clip), Doubled(CLASSES, clip)]
    changed = [Changed(CLASSES, clip), Changed(["bird"], clip, kl_weight=0.5)]
    keys = [{method.precompute_key() for method in group} for group in (plain, trip, doubled, changed)]
    assert [len(group) for group in keys] == [1, 1, 1, 1]
    assert len(set.union(*keys)) == 4


@pytest.mark.parametrize(
    "options",
    [{"num_experts": 2}, {"key_seed": 1}, {"routing": "random"}, {"train_capacity": None}, {"cluster_start": "keys"}],
)
def test_options_that_affect_precomputation_change_the_key(clip, options):
    assert TRIP(CLASSES, clip, **options).precompute_key() != TRIP(CLASSES, clip).precompute_key()
    # A method that declares no such options depends on all of them.
    assert Doubled(CLASSES, clip, kl_weight=0.5).precompute_key() != Doubled(CLASSES, clip).precompute_key()


def test_variants_of_trip_encode_each_image_once(tmp_path, image_root, monkeypatch):
    encoded = []
    original = CLIP.encode_image_tokens

    def encode_image_tokens(clip, images):
        encoded.extend(images)
        return original(clip, images)

    monkeypatch.setattr(CLIP, "encode_image_tokens", encode_image_tokens)
    for variant in (["--model.prompt_length=4"], ["--model.prompt_length=8", "--model.kl_weight=0"]):
        run = make_run(image_root, tmp_path, "trip", *variant, *SHORT)
        run.trainer.fit(run.model, run.datamodule)
        assert len(encoded) == len({bytes(image.numpy()) for image in encoded}) == 54


def test_options_and_clip_are_recorded(clip):
    module = Smallest(CLASSES, clip, depth=3)
    assert module.hparams == {"class_names": CLASSES, "depth": 3, "clip": module.describe()["clip"]}
    assert module.describe()["clip"]["name"] == "fedvlp-tiny"


def test_the_baseline_is_zero_shot_clip(clip):
    baseline = Smallest(CLASSES, clip).baseline()
    assert isinstance(baseline, ZeroShotCLIP)
    assert baseline.clip is clip
    assert baseline.class_names == CLASSES


@pytest.mark.parametrize("kind", [DPFPL, FedPGP, FedPHA, PromptFolio])
def test_the_shared_prompt_only_is_promptfl(clip, images, kind):
    method = kind(CLASSES, clip, prompt_length=8)
    spread(method.trainable_by_name().values(), 0.5)
    plain = PromptFL(CLASSES, clip, prompt_length=8)
    plain.load_state({"prompt": method.global_prompt.detach()})
    with method.shared_part_only():
        torch.testing.assert_close(method(images), plain(images))
    assert not torch.allclose(method(images), plain(images), atol=1e-2)
    if kind is FedPHA:  # its local prompt classifies on its own
        plain.load_state({"prompt": method.local_prompt.detach()})
        torch.testing.assert_close(method(images), plain(images))
