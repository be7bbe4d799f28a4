"""IVLP, FedPromptSRC and FedMaPLe: losses and gradients image by image, and initial prompts."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedvlp import IVLP, FedMaPLe, FedPromptSRC
from fedvlp.clip import PromptedImageEncoder, zero_shot_text_features
from fedvlp.core.module import check_phases
from fedvlp.core.state import Client, ClientUpdate, ServerState
from tests.helpers.slow import CLASSES, assert_step, slow_cross_entropy, slow_texts, spread, unit

LABELS = torch.tensor([2, 0, 1, 2])


def make(clip, kind, **options):
    torch.manual_seed(0)
    module = kind(CLASSES, clip, **options)
    spread(module.trainable_by_name().values(), 0.2)
    return module


def slow_towers(module, images):
    """Encode texts and images one at a time."""
    text, visual = module.prompts["text"], module.prompts["visual"]
    encoder = PromptedImageEncoder(module.clip)
    texts = slow_texts(module.clip, text[0], text[1:])
    return texts, [encoder(image[None], visual).features[0] for image in images]


def slow_ivlp(module, images):
    texts, features = slow_towers(module, images)
    return slow_cross_entropy(module.clip, features, texts, LABELS)


def slow_fed_prompt_src(module, images):
    """CE + lambda_1 mean |g - g0| + lambda_2 mean |f - f0| + mean q0 log(q0 / q), image by image and class by class."""
    clip = module.clip
    texts, features = slow_towers(module, images)
    texts = [unit(text) for text in texts]
    frozen_texts = [unit(text) for text in zero_shot_text_features(clip, CLASSES, 3)]
    loss = sum(25 * (g - g0).abs().mean() for g, g0 in zip(texts, frozen_texts, strict=True)) / 3
    for image, feature, label in zip(images, features, LABELS, strict=True):
        f = unit(feature)
        f0 = unit(clip.encode_image(image[None])[0])
        q = torch.stack([clip.logit_scale * f @ g for g in texts]).softmax(0)
        q0 = torch.stack([clip.logit_scale * f0 @ g0 for g0 in frozen_texts]).softmax(0)
        loss = loss + (10 * (f - f0).abs().mean() - q[label].log() + (q0 * (q0 / q).log()).sum() / 3) / 4
    return loss


def slow_fed_maple(module, images):
    """The two words that a prompt of two vectors does not replace stay in the text."""
    names = [f"of a {name}" if module.prompts.shape[1] == 2 else name for name in CLASSES]
    couplings = zip(module.prompts, module.couplings.weight, module.couplings.bias, strict=True)
    visual = torch.stack([prompt @ weight + bias for prompt, weight, bias in couplings])
    texts = slow_texts(module.clip, module.prompts[0], module.prompts[1:], names)
    features = [PromptedImageEncoder(module.clip)(image[None], visual).features[0] for image in images]
    return slow_cross_entropy(module.clip, features, texts, LABELS)


@pytest.mark.parametrize(
    ("kind", "options", "slow_loss"),
    [
        (IVLP, {"prompt_length": 16, "depth": 1}, slow_ivlp),
        (IVLP, {"prompt_length": 3, "depth": 2}, slow_ivlp),
        (FedPromptSRC, {"templates": 3, "text_weight": 25.0, "image_weight": 10.0}, slow_fed_prompt_src),
        (FedMaPLe, {}, slow_fed_maple),
        (FedMaPLe, {"prompt_length": 5, "depth": 2, "init_words": None}, slow_fed_maple),
    ],
)
def test_loss_and_gradients_match_the_paper(clip, images, kind, options, slow_loss):
    module = make(clip, kind, **options)
    assert_step(module, images, LABELS, slow_loss(module, images))


def test_the_order_of_visual_tokens_has_no_effect(clip, images):
    module = make(clip, IVLP, prompt_length=5, depth=2)
    before = module(images)
    with torch.no_grad():
        module.prompts["visual"].copy_(module.prompts["visual"].flip(1))
        torch.testing.assert_close(module(images), before, atol=1e-4, rtol=1e-5)
        module.prompts["text"].copy_(module.prompts["text"].flip(1))  # words have positions
    assert not torch.allclose(module(images), before, atol=1e-2)


@pytest.mark.parametrize("prompt_length", [1, 2, 4])
def test_maples_initial_text_features_equal_those_of_its_words(clip, prompt_length):
    """Before training, and with a prompt in one block, the text is CLIP's template without its full stop."""
    module = FedMaPLe(CLASSES, clip, prompt_length=prompt_length, depth=1)
    features = F.normalize(module.prompted.text_features(module.deep_prompts()), dim=-1)
    torch.testing.assert_close(features, zero_shot_text_features(clip, CLASSES, 1), atol=1e-5, rtol=0)


def test_deployed_prompts_are_the_gaussian_mean_over_rounds(clip):
    """One client sends constant tensors in each round."""
    uploads = [4.0, -1.0, 2.5, 7.0]
    module = FedPromptSRC(CLASSES, clip, templates=1, gaussian_mean=3.0, gaussian_std=1.5)
    (phase,) = check_phases(module)
    server = ServerState.start(module.shared_state())
    for number, value in enumerate(uploads):
        state = {name: torch.full_like(tensor, value) for name, tensor in server.shared.items()}
        server = ServerState(server.shared, server.deployed, server.memory, round=number)
        server = phase.strategy.aggregate(server, [ClientUpdate(Client(0, 0, 9), state, 9)])
    weights = [math.exp(-((number - 3.0) ** 2) / (2 * 1.5**2)) for number in (1, 2, 3, 4)]
    expected = sum(weight * value for weight, value in zip(weights, uploads, strict=True)) / sum(weights)
    for name, tensor in server.deployed.items():
        torch.testing.assert_close(tensor, torch.full_like(tensor, expected))
        assert (server.shared[name] == 7.0).all()
