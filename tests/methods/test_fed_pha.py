"""FedPHA's losses and gradients class by class, its projection by outer products, and which part stands alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedvlp import FedPHA
from tests.helpers.slow import CLASSES, assert_same, slow_cross_entropy, slow_texts, spread, unit

LABELS = torch.tensor([2, 0, 1, 2])
LENGTH = 6
PARTS = ("global_prompt", "local_prompt")


def make(clip, **options):
    torch.manual_seed(5)
    module = FedPHA(CLASSES, clip, prompt_length=LENGTH, **options)
    spread([module.global_prompt, module.local_prompt], 0.1)
    return module


def slow_projector(shared, null_share, projection):
    """V_2 V_2^T, one direction after another: of all directions of the decomposition, or of those that p_G has."""
    is_released = projection == "minor"
    directions = np.linalg.svd(shared.detach().numpy(), full_matrices=not is_released)[2]
    start = math.floor(LENGTH * (1 - null_share))
    total = np.zeros((shared.shape[1], shared.shape[1]))
    for direction in directions[start:]:
        total += np.outer(direction, direction)
    return torch.tensor(total, dtype=torch.float32)


def slow_loss(clip, images, parts, null_share, projection, margin):
    """Both cross-entropies, what pulls and what pushes, each class in a sequence of its own."""
    shared, own = parts
    prompts = [own, shared, own @ slow_projector(shared, null_share, projection)]
    texts = [[unit(text) for text in slow_texts(clip, prompt)] for prompt in prompts]
    loss = sum(slow_cross_entropy(clip, clip.encode_image(images), classes, LABELS) for classes in texts[:2])
    for of_own, of_shared, of_kept in zip(*texts, strict=True):
        loss = loss + (of_own - of_kept).square().sum() / len(of_own) / len(CLASSES)
        distance = (of_own - of_shared).square().sum().sqrt()
        if distance < margin:
            loss = loss + (margin - distance) / len(CLASSES)
    return loss


@pytest.mark.parametrize(
    ("null_share", "projection", "margin"), [(0.8, "complement", 1.0), (0.4, "minor", 1.5), (0.8, "minor", 0.01)]
)
def test_loss_and_gradients_are_those_of_the_equations(clip, images, null_share, projection, margin):
    method = make(clip, null_share=null_share, projection=projection, margin=margin)
    parts = [getattr(method, name).detach().clone().requires_grad_() for name in PARTS]
    expected = slow_loss(clip, images, parts, null_share, projection, margin)
    loss = method.training_step((images, LABELS), 0)
    slow = assert_same(loss, expected, [getattr(method, name) for name in PARTS], parts)
    assert all(gradient.any() for gradient in slow)
