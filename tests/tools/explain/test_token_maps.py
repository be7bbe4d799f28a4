from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle

from fedvlp.methods import TRIP, PromptFL
from fedvlp.tools.explain.methods import token_experts
from fedvlp.tools.explain.samples import Samples
from fedvlp.tools.explain.token_maps import DROPPED, expert_shares, token_map_picture

NAMES = ["cat", "dog"]


def images_for(clip, count=3):
    return torch.randn(count, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("options", [{}, {"cluster_start": "keys"}, {"eval_capacity": 1.0}, {"matched_to": "experts"}])
def test_shares_of_tokens_are_the_weights_of_the_mixture(clip, options):
    module = TRIP(NAMES, clip=clip, num_experts=3, prompt_length=2, **options).eval()
    images = images_for(clip)
    experts = token_experts(module, images)
    constants = module.precompute(images)
    weights = module.router(constants, module.expert_features)
    assert experts.shape == (3, clip.num_image_tokens)
    for tokens, of_image, kept in zip(experts, weights, constants["eval_kept"], strict=True):
        assert expert_shares(tokens, 3) == pytest.approx(of_image.tolist())
        assert (tokens >= 0).float().mean() == pytest.approx(float(kept))
    if options.get("matched_to") is None:
        alone = token_experts(module, images[1:2])
        assert torch.equal(alone[0], experts[1])


def test_learned_router_sends_each_token_to_its_likeliest_expert(clip):
    module = TRIP(NAMES, clip=clip, num_experts=3, prompt_length=2, routing="learned_token").eval()
    images = images_for(clip)
    tokens = clip.encode_image_tokens(images)[1]
    assert torch.equal(token_experts(module, images), module.router.linear(tokens).argmax(dim=-1))


@pytest.mark.parametrize("routing", ["image", "uniform", "random", "random_tokens", "learned_image"])
def test_other_routers_send_no_token(clip, routing):
    module = TRIP(NAMES, clip=clip, num_experts=3, prompt_length=2, routing=routing).eval()
    assert token_experts(module, images_for(clip)) is None
    assert token_experts(PromptFL(NAMES, clip=clip), images_for(clip)) is None


def test_picture_has_a_patch_for_each_token():
    tokens = torch.tensor([[0, 0, 1, -1, 1], [1, 1, 1, 1, 1]])
    samples = Samples(torch.zeros(2, 3, 4, 4), ["a.png", "in/b.png"], torch.tensor([1, -1]), ["ink", ""])
    picture = token_map_picture(samples, np.zeros((2, 4, 4, 3), np.float32), tokens, ["expert 1", "expert 2"], NAMES)
    image_axes, map_axes = picture.figure.axes[:2]
    other_map_axes = picture.figure.axes[3]
    patches = [patch for patch in map_axes.patches if isinstance(patch, Rectangle)]
    assert [patch.get_xy() for patch in patches] == [(-0.5, -0.5), (1.5, -0.5), (-0.5, 1.5), (1.5, 1.5)]
    assert [patch.get_hatch() for patch in patches] == [None, None, DROPPED["hatch"], None]
    assert patches[1].get_facecolor() == patches[3].get_facecolor() != patches[0].get_facecolor()
    assert [text.get_text() for text in map_axes.texts] == ["1", "2", "2"]
    assert image_axes.get_title() == "ink: dog"
    assert map_axes.get_title() == "50:50 %"
    assert other_map_axes.get_title() == "0:100 %"
    assert "expert 1: 1, expert 2: 2, dropped: 1 of 4 patches" in picture.alt
    assert "10.0% of these tokens were dropped" in picture.caption
    assert picture.image("png").startswith(b"\x89PNG")
