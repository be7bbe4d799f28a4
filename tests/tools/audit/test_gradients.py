"""Uploaded gradients of methods, and the image in the full gradient of a ViT."""

import pytest
import torch
import torch.nn.functional as F

from fedvlp import ADAPT, PLAN, DiPrompT, PromptFL, SingleDomain
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client
from fedvlp.tools.audit.gradients import (
    PATCH_LAYER,
    POSITIONS,
    loss_gradient,
    recover_image,
    trainable_tower,
    uploaded_parameters,
)
from tests.helpers.toy_federation import PersonalBias

CLASSES = ["circle", "square", "star"]


def started(module, phase=0):
    phase = module.configure_phases()[phase]
    module.train().start_client(RoundContext(0, phase, Client(1, 1, 5)))
    return module


@pytest.mark.parametrize(
    ("make", "phase", "expected"),
    [
        (lambda clip: PersonalBias(), 0, {"weight"}),
        (lambda clip: PromptFL(CLASSES, clip, prompt_length=2), 0, {"prompt"}),
        (lambda clip: SingleDomain(CLASSES, clip, prompt_length=2), 0, set()),
        (lambda clip: PLAN(CLASSES, 2, clip, prompt_length=2), 0, {"pool.own.text", "pool.own.visual"}),
        (lambda clip: ADAPT(CLASSES, ["a", "b"], clip, prompt_length=2), 0, {"dual.text.shared", "dual.visual.shared"}),
        (
            lambda clip: DiPrompT(CLASSES, ["a", "b"], clip, prompt_length=4, upload_query=False),
            0,
            {"global_prompt", "domain_prompts"},
        ),
    ],
    ids=["bias", "promptfl", "single_domain", "plan", "adapt", "diprompt"],
)
def test_the_inverted_parameters_are_the_uploaded_parameters(clip, make, phase, expected):
    assert set(uploaded_parameters(started(make(clip), phase))) == expected


def embedding_gradient(image, width, size):
    """Compute a loss gradient of tokens: a class token and patches from a convolution, with added positions."""
    generator = torch.Generator().manual_seed(3)
    layer = torch.randn(width, 3, size, size, generator=generator).requires_grad_()
    patches = (image.shape[-1] // size) ** 2
    positions = torch.randn(patches + 1, width, generator=generator).requires_grad_()
    tokens = F.conv2d(image, layer, stride=size).flatten(2).mT
    tokens = torch.cat([torch.zeros(1, 1, width), tokens], dim=1) + positions
    loss = (tokens * torch.randn(tokens.shape, generator=generator)).tanh().square().sum()
    layer_gradient, position_gradient = torch.autograd.grad(loss, (layer, positions))
    return {PATCH_LAYER: layer_gradient, POSITIONS: position_gradient}


def test_no_image_is_recovered_if_a_token_has_too_few_values():
    image = torch.randn(1, 3, 12, 12)
    assert recover_image(embedding_gradient(image, width=8, size=4)) is None


def test_the_image_is_recovered_from_the_full_gradient_of_a_clip(clip):
    module = started(PromptFL(CLASSES, clip, prompt_length=2))
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(6))
    with trainable_tower(module) as tower:
        gradient = loss_gradient(module, image, torch.tensor([2]), tower)
    assert (recover_image(gradient) - image).abs().max() < 1e-2
