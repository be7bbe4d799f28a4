"""FedPGP's loss and gradients class by class, where it is PromptFL, and which part stands alone."""

from __future__ import annotations

import pytest
import torch

from fedvlp import FedPGP
from tests.helpers.slow import CLASSES, assert_same, cosine, slow_cross_entropy, slow_texts, spread

LABELS = torch.tensor([2, 0, 1, 2])
PARTS = ("global_prompt", "local_left", "local_right")


def make(clip, **options):
    torch.manual_seed(5)
    module = FedPGP(CLASSES, clip, prompt_length=5, rank=2, **options)
    spread([module.local_left, module.local_right], 0.5)
    return module


def slow_contrast(written, shared, personal, temperature):
    """The equation, class by class: a class's global feature and its hand-written one are the pair that belongs."""
    terms = []
    for one, known, own in zip(shared, written, personal, strict=True):
        right = (cosine(one, known) / temperature).exp()
        wrong = (cosine(one, own) / temperature).exp()
        terms.append(-(right / (right + wrong)).log())
    return sum(terms) / len(terms)


def slow_loss(clip, images, parts, weight, temperature):
    """Cross-entropy and contrast, one image and one class after another, each class in a sequence of its own."""
    shared, left, right = parts
    own = []
    for vector, shares in zip(shared, left, strict=True):
        own.append(vector + sum(share * row for share, row in zip(shares, right, strict=True)))
    texts = slow_texts(clip, torch.stack(own))
    written = [clip.encode_text(clip.tokenizer([f"a photo of a {name}."]))[0] for name in CLASSES]
    contrast = slow_contrast(written, slow_texts(clip, shared), texts, temperature)
    return slow_cross_entropy(clip, clip.encode_image(images), texts, LABELS) + weight * contrast


@pytest.mark.parametrize(("weight", "temperature"), [(0.5, 0.5), (40.0, 0.25)])
def test_loss_and_gradients_are_those_of_the_paper(clip, images, weight, temperature):
    method = make(clip, contrast_weight=weight, temperature=temperature)
    parts = [getattr(method, name).detach().clone().requires_grad_() for name in PARTS]
    expected = slow_loss(clip, images, parts, weight, temperature)
    loss = method.training_step((images, LABELS), 0)
    slow = assert_same(loss, expected, [getattr(method, name) for name in PARTS], parts)
    assert all(gradient.any() for gradient in slow)
