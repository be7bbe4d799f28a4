from __future__ import annotations

import pytest
import torch

from fedvlp.methods import TRIP, SingleDomain
from fedvlp.tools.explain.context import ExplainContext
from fedvlp.tools.explain.explanations import make_experts, named_prompts
from fedvlp.tools.explain.samples import Samples
from fedvlp.utils.errors import UserError

NAMES = ["cat", "dog"]


def context_of(module, samples=None, personal=None):
    return ExplainContext(module.eval(), {}, personal or {}, samples, None)


def test_many_images_make_several_figures(clip):
    pixels = torch.randn(7, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(3))
    samples = Samples(pixels, [f"{place}.png" for place in range(7)], torch.full((7,), -1), [""] * 7)
    artifacts = make_experts(context_of(TRIP(NAMES, clip=clip, num_experts=2, prompt_length=2), samples))
    assert [artifact.file for artifact in artifacts] == ["experts_1.png", "experts_2.png"]
    assert "5.png" in artifacts[0].alt
    assert "6.png" in artifacts[1].alt
    with pytest.raises(UserError, match="Pass --images"):
        context_of(TRIP(NAMES, clip=clip, num_experts=2, prompt_length=2)).require_samples()


def test_prompts_that_all_clients_share_are_named_once(clip):
    module = SingleDomain(NAMES, clip=clip, prompt_length=2)
    first = torch.zeros(2, clip.text_width)
    second = torch.ones(2, clip.text_width)
    own = named_prompts(context_of(module, personal={"ink": {"prompt": first}, "oil": {"prompt": second}}))
    assert {name: float(prompt.mean()) for name, prompt in own.items()} == {"prompt of ink": 0, "prompt of oil": 1}
    shared = named_prompts(context_of(module, personal={"ink": {"prompt": second}, "oil": {"prompt": second}}))
    assert {name: float(prompt.mean()) for name, prompt in shared.items()} == {"prompt": 1}
