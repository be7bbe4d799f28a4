"""IVLP's loss and gradients image by image, and what it is with one tower's prompts: the study's LPT and VPT."""

from __future__ import annotations

import pytest
import torch

from fedvlp import IVLP
from fedvlp.clip import PromptedImageEncoder
from tests.helpers.slow import CLASSES, assert_same, slow_cross_entropy, slow_texts, spread

LABELS = torch.tensor([2, 0, 1, 2])


def make(clip, **options):
    torch.manual_seed(5)
    module = IVLP(CLASSES, clip, **options)
    spread(module.prompts.values(), 0.2)
    return module


@pytest.mark.parametrize(("length", "depth"), [(16, 1), (3, 2)])
def test_loss_and_gradients_are_those_of_the_paper(clip, images, length, depth):
    module = make(clip, prompt_length=length, depth=depth)
    assert [len(prompts) for prompts in module.prompts.values()] == [depth, depth]
    text, visual = module.prompts["text"], module.prompts["visual"]
    features = [PromptedImageEncoder(clip)(image[None], visual).features[0] for image in images]
    expected = slow_cross_entropy(clip, features, slow_texts(clip, text[0], text[1:]), LABELS)
    slow = assert_same(module.training_step((images, LABELS), 0), expected, [text, visual])
    assert all(gradient.any() for gradient in slow)


def test_the_order_of_visual_tokens_does_not_matter(clip, images):
    module = make(clip, prompt_length=5, depth=2)
    before = module(images)
    with torch.no_grad():
        module.prompts["visual"].copy_(module.prompts["visual"].flip(1))
        torch.testing.assert_close(module(images), before, atol=1e-4, rtol=1e-5)
        module.prompts["text"].copy_(module.prompts["text"].flip(1))  # words have positions
    assert not torch.allclose(module(images), before, atol=1e-2)
