from __future__ import annotations

from copy import deepcopy

import open_clip
import pytest

from fedvlp.clip import CLIP, build_model

VISION = {"image_size": 32, "patch_size": 8, "width": 48, "layers": 3, "head_width": 16}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 2}
VIT = {"embed_dim": 24, "vision_cfg": VISION, "text_cfg": TEXT}
TOWERS = {
    "vit": VISION,
    "scaled": {**VISION, "ls_init_value": 0.5},
    "resnet": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None, "head_width": 16},
}


@pytest.fixture(scope="session")
def random_clips():
    """Small CLIPs with random weights, by the kind of their image tower."""
    tokenizer = open_clip.SimpleTokenizer(context_length=77)
    clips = {}
    for name, vision in TOWERS.items():
        config = {**VIT, "vision_cfg": vision}
        clips[name] = CLIP(build_model(deepcopy(config), seed=1), tokenizer, config)
    return clips
