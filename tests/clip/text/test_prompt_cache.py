from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from fedvlp.clip.text.prompt_cache import PromptFeatureCache


class Counted:
    """A function of prompts that counts how often it ran."""

    def __init__(self):
        self.calls = 0

    def __call__(self, *prompts):
        self.calls += 1
        return sum(prompts) * 2


@pytest.fixture
def function():
    return Counted()


def test_equal_prompts_are_computed_once(function):
    cache = PromptFeatureCache()
    one = torch.ones(2, 3)
    other = torch.zeros(2, 3)
    for _ in range(2):
        assert torch.equal(cache("f", function, one.clone()), one * 2)
        assert torch.equal(cache("f", function, one, other), one * 2)
        assert torch.equal(cache("f", function, other), other)
    assert function.calls == 3
    cache("g", function, one)
    assert function.calls == 4


def test_changed_prompts_are_computed_again(function):
    cache = PromptFeatureCache()
    prompt = torch.ones(2, 3)
    cache("f", function, prompt)
    prompt += 1
    assert torch.equal(cache("f", function, prompt), torch.full((2, 3), 4.0))
    assert function.calls == 2


def test_prompts_with_gradients_are_computed_each_time(function):
    cache = PromptFeatureCache()
    prompt = torch.ones(2, 3, requires_grad=True)
    for _ in range(2):
        assert cache("f", function, prompt).requires_grad
    assert function.calls == 2
    with torch.no_grad():
        assert not cache("f", function, prompt).requires_grad
        cache("f", function, prompt)
    assert function.calls == 3


def test_the_oldest_is_dropped(function):
    cache = PromptFeatureCache(capacity=2)
    prompts = [torch.full((1,), float(value)) for value in range(3)]
    for prompt in [*prompts, *prompts[1:]]:
        cache("f", function, prompt)
    assert function.calls == 3
    cache("f", function, prompts[0])
    assert function.calls == 4


def test_what_was_found_in_another_mode_is_not_taken(function):
    cache = PromptFeatureCache()
    prompt = torch.ones(2, 3)
    with torch.inference_mode():
        cache("f", function, prompt)
    assert not cache("f", function, prompt).is_inference()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cache("f", function, prompt)
    assert function.calls == 3


def test_stacked_prompts_are_left_alone(function):
    cache = PromptFeatureCache()
    prompts = torch.ones(2, 3)
    for _ in range(2):
        found = torch.func.vmap(lambda prompt: cache("f", function, prompt))(prompts)
        assert torch.equal(found, prompts * 2)
    assert function.calls == 2
    assert deepcopy(cache)("f", function, prompts) is not None
