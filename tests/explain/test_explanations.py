from __future__ import annotations

import pytest
import torch

from fedvlp.explain.explanations import Subject, make_experts, named_prompts
from fedvlp.explain.samples import Samples
from fedvlp.methods import TRIP, SingleDomain
from fedvlp.utils.errors import UserError

NAMES = ["cat", "dog"]


def subject_of(module, samples=None, personal=None):
    return Subject(module.eval(), {}, personal or {}, samples, None)


def test_many_images_make_several_figures(clip):
    pixels = torch.randn(7, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(3))
    samples = Samples(pixels, [f"{place}.png" for place in range(7)], torch.full((7,), -1), [""] * 7)
    made = make_experts(subject_of(TRIP(NAMES, clip=clip, num_experts=2, prompt_length=2), samples))
    assert [exhibit.file for exhibit in made] == ["experts_1.png", "experts_2.png"]
    assert "5.png" in made[0].alt
    assert "6.png" in made[1].alt
    with pytest.raises(UserError, match="Pass --images"):
        subject_of(TRIP(NAMES, clip=clip, num_experts=2, prompt_length=2)).shown()


def test_prompts_that_all_clients_share_are_named_once(clip):
    module = SingleDomain(NAMES, clip=clip, prompt_length=2)
    first, second = torch.zeros(2, clip.text_width), torch.ones(2, clip.text_width)
    apart = named_prompts(subject_of(module, personal={"ink": {"prompt": first}, "oil": {"prompt": second}}))
    assert {name: float(prompt.mean()) for name, prompt in apart.items()} == {"prompt of ink": 0, "prompt of oil": 1}
    shared = named_prompts(subject_of(module, personal={"ink": {"prompt": second}, "oil": {"prompt": second}}))
    assert {name: float(prompt.mean()) for name, prompt in shared.items()} == {"prompt": 1}
