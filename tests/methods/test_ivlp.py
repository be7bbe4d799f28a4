"""IVLP's loss and gradients image by image, and what it is with one tower's prompts: the study's LPT and VPT."""

from __future__ import annotations

import pytest
import torch

from fedvlp import IVLP, PromptFL
from fedvlp.clip import PromptedImageEncoder, PromptedTextEncoder
from tests.helpers.slow import assert_same, cosine

CLASSES = ["red circle", "star", "big square"]
LABELS = torch.tensor([2, 0, 1, 2])


def make(clip, **options):
    torch.manual_seed(5)
    module = IVLP(CLASSES, clip, **options)
    with torch.no_grad():
        for prompts in module.prompts.values():
            prompts.add_(0.2 * torch.randn_like(prompts))
    return module


def slow_loss(module, images, length):
    """The cross-entropy, one image and one class after another, each class in a sequence of its own."""
    clip = module.clip
    text = module.prompts["text"]
    texts = []
    for name in CLASSES:
        texts.append(PromptedTextEncoder(clip, [name], prompt_length=length, layout="plain")(text[0], text[1:])[0])
    loss = 0
    for image, label in zip(images, LABELS.tolist(), strict=True):
        feature = PromptedImageEncoder(clip)(image[None], module.prompts["visual"]).features[0]
        scores = torch.stack([clip.logit_scale * cosine(feature, text) for text in texts])
        loss = loss - scores.log_softmax(0)[label] / len(LABELS)
    return loss


@pytest.mark.parametrize(("length", "depth"), [(16, 1), (3, 2)])
def test_loss_and_gradients_are_those_of_the_paper(clip, images, length, depth):
    module = make(clip, prompt_length=length, depth=depth)
    assert [len(prompts) for prompts in module.prompts.values()] == [depth, depth]
    loss = module.training_step((images, LABELS), 0)
    slow = assert_same(loss, slow_loss(module, images, length), list(module.prompts.values()))
    assert all(gradient.any() for gradient in slow)


def test_the_order_of_visual_tokens_does_not_matter(clip, images):
    module = make(clip, prompt_length=5, depth=2)
    before = module(images)
    with torch.no_grad():
        module.prompts["visual"].copy_(module.prompts["visual"].flip(1))
        torch.testing.assert_close(module(images), before, atol=1e-4, rtol=1e-5)
        module.prompts["text"].copy_(module.prompts["text"].flip(1))  # words have positions
    assert not torch.allclose(module(images), before, atol=1e-2)


def test_without_visual_tokens_it_is_promptfl(clip, images):
    module = make(clip)
    module.prompts["visual"] = module.prompts["visual"][:, :0]
    plain = PromptFL(CLASSES, clip)
    with torch.no_grad():
        plain.prompt.copy_(module.prompts["text"][0])
    torch.testing.assert_close(module(images), plain(images), atol=1e-4, rtol=1e-5)
