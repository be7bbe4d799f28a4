"""FedPromptSRC: its loss image by image, its limit cases, and the Gaussian weights of rounds."""

from __future__ import annotations

import math

import pytest
import torch

from fedvlp import FedPromptSRC
from fedvlp.clip import PromptedImageEncoder, zero_shot_text_features
from fedvlp.core.module import check_phases
from fedvlp.core.state import Client, ClientUpdate, ServerState
from tests.helpers.slow import CLASSES, assert_same, slow_texts, spread, unit

LABELS = torch.tensor([0, 2, 1, 1])


def make(clip, **options):
    torch.manual_seed(0)
    module = FedPromptSRC(CLASSES, clip, **{"templates": 3, **options})
    spread(module.prompts.values(), 0.2)
    return module


def reference_loss(module, images, text_weight, image_weight):
    """CE + lambda_1 mean |g - g0| + lambda_2 mean |f - f0| + mean q0 log(q0 / q), image by image and class by class."""
    clip = module.clip
    texts = [unit(each) for each in slow_texts(clip, module.prompts["text"][0], module.prompts["text"][1:])]
    frozen_texts = [unit(each) for each in zero_shot_text_features(clip, CLASSES, 3)]
    loss = sum(text_weight * (g - g0).abs().sum() / len(g) for g, g0 in zip(texts, frozen_texts, strict=True)) / 3
    for image, label in zip(images, LABELS, strict=True):
        f = unit(PromptedImageEncoder(clip)(image[None], module.prompts["visual"]).features[0])
        f0 = unit(clip.encode_image(image[None])[0])
        q = torch.stack([clip.logit_scale * f @ g for g in texts]).softmax(0)
        q0 = torch.stack([clip.logit_scale * f0 @ g0 for g0 in frozen_texts]).softmax(0)
        distance = image_weight * (f - f0).abs().sum() / len(f)
        loss = loss + (distance - q[label].log() + (q0 * (q0 / q).log()).sum() / 3) / 4
    return loss


@pytest.mark.parametrize("weights", [(25.0, 10.0), (0.0, 3.0)])
def test_loss_and_gradients(clip, images, weights):
    module = make(clip, text_weight=weights[0], image_weight=weights[1])
    loss = module.training_step((images, LABELS), 0)
    expected = reference_loss(module, images, *weights)
    assert_same(loss, expected, list(module.prompts.values()))


def after_rounds(module, uploads):
    """What is shared and deployed after rounds in each of which one client sends a constant."""
    (phase,) = check_phases(module)
    server = ServerState.start(module.shared_state())
    for number, value in enumerate(uploads):
        state = {name: torch.full_like(tensor, value) for name, tensor in server.shared.items()}
        server = ServerState(server.shared, server.deployed, server.memory, round=number)
        server = phase.strategy.aggregate(server, [ClientUpdate(Client(0, 0, 9), state, 9)])
    return server


def test_deployed_prompts_are_the_gaussian_mean_over_rounds(clip):
    uploads = [4.0, -1.0, 2.5, 7.0]
    server = after_rounds(make(clip, gaussian_mean=3.0, gaussian_std=1.5), uploads)
    weights = [math.exp(-((number - 3.0) ** 2) / (2 * 1.5**2)) for number in (1, 2, 3, 4)]
    expected = sum(weight * value for weight, value in zip(weights, uploads, strict=True)) / sum(weights)
    for name, tensor in server.deployed.items():
        torch.testing.assert_close(tensor, torch.full_like(tensor, expected))
        assert (server.shared[name] == 7.0).all()
