"""The image in a ViT's full gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client
from fedvlp.methods import PromptFL
from fedvlp.tools.audit.gradients import PATCH_LAYER, POSITIONS, image_of_gradient, loss_gradient, trainable_tower


def embedding_gradient(image, width, size):
    """The gradient of some loss of tokens: class token, then patches by a convolution, each with its position."""
    generator = torch.Generator().manual_seed(3)
    layer = torch.randn(width, 3, size, size, generator=generator).requires_grad_()
    patches = (image.shape[-1] // size) ** 2
    positions = torch.randn(patches + 1, width, generator=generator).requires_grad_()
    tokens = F.conv2d(image, layer, stride=size).flatten(2).mT
    tokens = torch.cat([torch.zeros(1, 1, width), tokens], dim=1) + positions
    loss = (tokens * torch.randn(tokens.shape, generator=generator)).tanh().square().sum()
    of_layer, of_positions = torch.autograd.grad(loss, (layer, positions))
    return {PATCH_LAYER: of_layer, POSITIONS: of_positions}


def test_patches_come_back_in_their_places():
    image = torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(4))
    found = image_of_gradient(embedding_gradient(image, width=11, size=4))
    assert torch.allclose(found, image, atol=1e-3)


def test_the_length_of_the_gradient_does_not_matter():
    image = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(5))
    gradient = embedding_gradient(image, width=7, size=3)
    scaled = {name: -0.01 * value for name, value in gradient.items()}
    assert torch.allclose(image_of_gradient(scaled), image_of_gradient(gradient), atol=1e-4)


def test_more_patches_than_numbers_in_a_token_give_no_image():
    image = torch.randn(1, 3, 12, 12)
    assert image_of_gradient(embedding_gradient(image, width=8, size=4)) is None


def test_other_towers_give_no_image():
    assert image_of_gradient({f"{PATCH_LAYER}": torch.ones(2, 3, 4, 4)}) is None
    assert image_of_gradient({"prompt": torch.ones(2, 3)}) is None


def test_the_full_gradient_of_a_clip_holds_its_image(clip):
    module = PromptFL(["circle", "square", "star"], clip, prompt_length=2).train()
    (phase,) = module.configure_phases()
    module.start_client(RoundContext(0, phase, Client(0, 0, 5)))
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(6))
    with trainable_tower(module) as tower:
        gradient = loss_gradient(module, image, torch.tensor([2]), tower)
    assert (image_of_gradient(gradient) - image).abs().max() < 1e-2


@pytest.mark.parametrize("fails", [True, False])
def test_the_tower_is_frozen_again(clip, fails):
    module = PromptFL(["circle", "square"], clip, prompt_length=2)
    weights = list(clip.model.visual.parameters())
    with pytest.raises(KeyError) if fails else trainable_tower(module), trainable_tower(module):
        assert all(weight.requires_grad for weight in weights)
        if fails:
            raise KeyError
    assert not any(weight.requires_grad for weight in weights)
