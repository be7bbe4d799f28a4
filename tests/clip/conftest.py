from __future__ import annotations

from copy import deepcopy

import open_clip
import pytest

from fedvlp.clip import CLIP, build_model

VIT = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "patch_size": 8, "width": 48, "layers": 2, "head_width": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 3},
}
RESNET = {
    **VIT,
    "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None, "head_width": 16},
}
CUSTOM = {**VIT, "custom_text": True, "text_cfg": {**VIT["text_cfg"], "proj_bias": True}}


@pytest.fixture(scope="session")
def configs():
    return {"vit": VIT, "resnet": RESNET, "custom": CUSTOM, "quick": {**VIT, "quick_gelu": True}}


@pytest.fixture(scope="session")
def make_clip():
    def make(config, **options):
        tokenizer = open_clip.SimpleTokenizer(context_length=config["text_cfg"]["context_length"])
        return CLIP(build_model(deepcopy(config)), tokenizer, config, **options)

    return make


@pytest.fixture(scope="session")
def clip(make_clip):
    return make_clip(VIT)
