"""Texts of classes and domains, against one sequence of the full context for each."""

from __future__ import annotations

import pytest
import torch

from fedvlp.clip import DomainTextEncoder, PromptedTextEncoder, zero_shot_text_features
from fedvlp.clip.text import domain_text
from fedvlp.clip.text.packing import encode_side_by_side

CLASSES = ["red circle", "star"]
DOMAINS = ["art_painting", "photo", "sketch"]


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
    torch.testing.assert_close(found, text.under_each(own), atol=1e-6, rtol=1e-5)
    found.square().sum().backward()
    assert own.grad[1].any()
    assert not own.grad[0].any()
    assert not own.grad[2].any()


def test_side_by_side_equals_one_after_another(clip):
    rows = [PromptedTextEncoder(clip, [f"{m} a", f"{m} b c"], prompt_length=5, token_budget=9).rows for m in DOMAINS]
    together = prompts(clip, 3).requires_grad_()
    alone = prompts(clip, 3).requires_grad_()
    signal = prompts(clip, 3)
    found = torch.stack(encode_side_by_side(clip.text, rows, list(together)))
    expected = torch.cat([row.encode(clip.text, prompt[None]) for row, prompt in zip(rows, alone, strict=True)])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    for features in (found, expected):
        (features * signal[:, :2, :24]).sum().backward()
    torch.testing.assert_close(together.grad, alone.grad, atol=1e-6, rtol=1e-4)


def test_prompts_that_do_not_learn_are_encoded_when_they_change(clip, text, monkeypatch):
    calls = []

    def counted(*given):
        calls.append(1)
        return encode_side_by_side(*given)

    monkeypatch.setattr(domain_text, "encode_side_by_side", counted)
    own = prompts(clip, 3).requires_grad_()
    for _ in range(2):
        text.under_each(own, learning=torch.tensor([1]))
    assert len(calls) == 3  # what learns twice, the others once
    with torch.no_grad():
        own[0] += 1
    torch.testing.assert_close(text.under_each(own, learning=torch.tensor([1])), text.under_each(own))
