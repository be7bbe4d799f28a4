"""CoCoOp's prompts, logits and gradients image by image, and where it is PromptFL."""

from __future__ import annotations

import pytest
import torch

from fedvlp import CoCoOp
from tests.helpers.slow import CLASSES, assert_same, slow_logits, slow_texts

LABELS = torch.tensor([2, 0, 1, 2])


@pytest.fixture
def method(clip):
    torch.manual_seed(5)
    return CoCoOp(CLASSES, clip)


def moved_logits(method, feature, parts):
    """One image's logits: the Meta-Net by hand, then each class in a sequence of its own and of full length."""
    prompt, first, first_bias, second, second_bias = parts
    hidden = (first @ (feature / feature.square().sum().sqrt()) + first_bias).clamp_min(0)
    shift = second @ hidden + second_bias
    moved = torch.stack([vector + shift for vector in prompt])
    return slow_logits(method.clip, feature, slow_texts(method.clip, moved))


def test_logits_loss_and_gradients_are_those_of_the_paper(method, images):
    parts = [value.detach().clone().requires_grad_() for value in (method.prompt, *method.meta_net.parameters())]
    features = method.clip.encode_image(images)
    expected = torch.stack([moved_logits(method, feature, parts) for feature in features])
    torch.testing.assert_close(method(images), expected, atol=1e-3, rtol=1e-5)
    slow_loss = -sum(row.log_softmax(0)[label] for row, label in zip(expected, LABELS.tolist(), strict=True)) / 4
    loss = method.training_step((images, LABELS), 0)
    slow = assert_same(loss, slow_loss, [method.prompt, *method.meta_net.parameters()], parts)
    assert all(gradient.any() for gradient in slow)
