"""Texts of classes and domains, against one sequence of the full context for each."""

from __future__ import annotations

import pytest
import torch

from fedvlp.clip import DomainTextEncoder, PromptedTextEncoder, zero_shot_text_features

CLASSES, DOMAINS = ["red circle", "star"], ["art_painting", "photo", "sketch"]


@pytest.fixture
def text(clip):
    return DomainTextEncoder(clip, CLASSES, DOMAINS, prompt_length=5)


def plain(clip, name, prompt):
    return PromptedTextEncoder(clip, [name], prompt_length=5, layout="plain")(prompt)[0]


def prompts(clip, count):
    return torch.randn(count, 5, clip.text_width, generator=torch.Generator().manual_seed(0))


def test_one_prompt_has_the_class_before_the_domain(clip, text):
    (prompt,) = prompts(clip, 1)
    found = text.under_one(prompt)
    for c, name in enumerate(CLASSES):
        for m, domain in enumerate(("art painting", "photo", "sketch")):
            assert torch.allclose(found[c, m], plain(clip, f"{name} with the domain of {domain}", prompt), atol=1e-4)


def test_each_domains_prompt_has_the_domain_before_the_class(clip, text):
    own = prompts(clip, 3)
    found = text.under_each(own)
    for c, name in enumerate(CLASSES):
        for m, domain in enumerate(("art painting", "photo", "sketch")):
            assert torch.allclose(found[c, m], plain(clip, f"{domain} {name}", own[m]), atol=1e-4)


def test_handwritten_takes_the_place_of_no_prompt(clip, text):
    expected = zero_shot_text_features(clip, ["star with the domain of photo"])[0]
    assert torch.allclose(text.under_one(None)[1, 1], expected, atol=1e-5)


def test_domains_that_do_not_learn_get_no_gradient_and_the_same_features(clip, text):
    own = prompts(clip, 3).requires_grad_()
    found = text.under_each(own, learning=torch.tensor([1, 1]))
    assert torch.equal(found, text.under_each(own))
    found.square().sum().backward()
    assert own.grad[1].any()
    assert not own.grad[0].any()
    assert not own.grad[2].any()
