"""PromptFolio's loss and gradients class by class, and what it is at the ends of its share."""

from __future__ import annotations

import pytest
import torch

from fedvlp import PromptFolio
from tests.helpers.slow import CLASSES, assert_same, slow_texts, spread, unit

LABELS = torch.tensor([2, 0, 1, 2])


def make(clip, local_share):
    torch.manual_seed(5)
    module = PromptFolio(CLASSES, clip, prompt_length=4, local_share=local_share)
    spread([module.global_prompt, module.local_prompt], 0.5)
    return module


def slow_loss(clip, images, shared, local, share):
    """Cross-entropy under mixed features, one image and one class after another, each class in its own sequence."""
    pairs = zip(slow_texts(clip, shared), slow_texts(clip, local), strict=True)
    mixed = [(1 - share) * unit(one) + share * unit(other) for one, other in pairs]
    loss = 0
    for feature, label in zip(clip.encode_image(images), LABELS.tolist(), strict=True):
        scores = torch.stack([clip.logit_scale * (unit(feature) @ weight) for weight in mixed])
        loss = loss - scores.log_softmax(0)[label] / 4
    return loss


@pytest.mark.parametrize("share", [0.4, 0.75])
def test_loss_and_gradients_are_those_of_mixed_features(clip, images, share):
    method = make(clip, share)
    prompts = [method.global_prompt, method.local_prompt]
    copies = [prompt.detach().clone().requires_grad_() for prompt in prompts]
    expected = slow_loss(clip, images, *copies, share)
    gradients = assert_same(method.training_step((images, LABELS), 0), expected, prompts, copies)
    assert all(gradient.any() for gradient in gradients)
