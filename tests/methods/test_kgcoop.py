"""KgCoOp's loss and gradient class by class, and what it is at its ends."""

from __future__ import annotations

import pytest
import torch

from fedvlp import KgCoOp, ZeroShotCLIP
from tests.helpers.slow import CLASSES, assert_same, slow_cross_entropy, slow_texts, unit

LABELS = torch.tensor([2, 0, 1, 2])


@pytest.fixture
def method(clip):
    torch.manual_seed(5)
    return KgCoOp(CLASSES, clip, init_words=None, distance_weight=3.0)


def slow_loss(method, images, prompt):
    """Cross-entropy and distance, one image and one class after another, each class in a sequence of its own."""
    texts = [unit(text) for text in slow_texts(method.clip, prompt)]
    written = [unit(method.clip.encode_text(method.clip.tokenizer([f"a photo of a {name}."]))[0]) for name in CLASSES]
    cross_entropy = slow_cross_entropy(method.clip, method.clip.encode_image(images), texts, LABELS)
    distance = sum((text - known).square().sum() for text, known in zip(texts, written, strict=True)) / 3
    return cross_entropy + 3.0 * distance


def test_loss_and_gradient_are_those_of_the_paper(method, images):
    prompt = method.prompt.detach().clone().requires_grad_()
    expected = slow_loss(method, images, prompt)
    assert_same(method.training_step((images, LABELS), 0), expected, [method.prompt], [prompt])


def test_it_starts_at_the_hand_written_prompt(clip, images):
    start = KgCoOp(CLASSES, clip)
    assert start.distance(start.text(start.prompt)) < 1e-9
    torch.testing.assert_close(start(images), ZeroShotCLIP(CLASSES, clip)(images), atol=1e-3, rtol=1e-4)
