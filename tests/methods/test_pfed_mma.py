"""pFedMMA: its adapters block by block, and its shared part."""

import pytest
import torch

from fedvlp import PFedMMA
from fedvlp.clip import cosine_logits
from tests.helpers.slow import CLASSES, assert_step, slow_cross_entropy, spread

LABELS = torch.tensor([2, 0, 1, 2])
RANK = 5


def make(clip, **options):
    torch.manual_seed(3)
    module = PFedMMA(CLASSES, clip, **{"rank": RANK, "alpha": 2.0, **options})
    spread(module.trainable_by_name().values(), 0.2)
    return module


@pytest.fixture
def method(clip):
    return make(clip, depth=2)


def slow_adapter(method, tower, number, vector):
    """Adapt one token."""
    for maps in (method.down[tower], method.shared):
        vector = (maps.weight[number] @ vector + maps.bias[number]).clamp_min(0)
    maps = method.up[tower]
    return maps.weight[number] @ vector + maps.bias[number]


def slow_tower(method, name):
    """Add adapters, which run one token at a time, to the last two blocks of a tower."""
    tower = getattr(method.clip, name)

    def make_branch(number):
        def branch(hidden):
            added = [slow_adapter(method, name, number, token) for token in hidden.flatten(0, 1)]
            return method.alpha * torch.stack(added).view_as(hidden)

        return branch

    return tower.add_branches({len(tower.blocks) - 2 + number: make_branch(number) for number in range(2)})


def test_loss_and_gradients_match_the_equations(method, images):
    assert len(method.trainable_by_name()) == 10
    texts = method.rows.encode_words(slow_tower(method, "text"))
    expected = slow_cross_entropy(method.clip, slow_tower(method, "image").features(images), texts, LABELS)
    assert_step(method, images, LABELS, expected)
    assert not torch.allclose(method(images), zero_shot(method, images), atol=0.5)


def zero_shot(method, images):
    """Compute CLIP's logits without any adapter."""
    clip = method.clip
    return cosine_logits(clip.encode_image(images), method.rows.encode_words(clip.text), clip.logit_scale)


@torch.no_grad()
def test_the_shared_part_only_is_zero_shot_clip(method, images):
    """Also right after encoding the texts with adapters."""
    own = method(images)
    with method.shared_part_only():
        assert torch.equal(method(images), zero_shot(method, images))
    assert torch.equal(method(images), own)
