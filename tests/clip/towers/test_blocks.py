"""Towers own their compiled steps: nothing is written on open_clip's modules, and copies have their own towers."""

from __future__ import annotations

import pickle
from copy import deepcopy
from functools import partial

import pytest
import torch
from open_clip.transformer import QuickGELU as OpenClipQuickGELU

from fedvlp.clip import PromptedImageEncoder, PromptedTextEncoder
from fedvlp.clip.towers.blocks import QuickGELU, multiply
from tests.helpers.shapes import unchecked
from tests.helpers.text_features import NAMES

COPIES = {"deepcopy": deepcopy, "pickle": lambda clip: pickle.loads(pickle.dumps(clip))}


@pytest.fixture
def fresh_clip(make_clip, configs):
    return make_clip(configs["vit"])


def encode(clip):
    """Runs both towers; returns the features of texts and images."""
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randn(4, 32, generator=generator)
    prompts = torch.randn(2, 3, 48, generator=generator)
    images = torch.randn(2, 3, 32, 32, generator=generator)
    return PromptedTextEncoder(clip, NAMES, prompt_length=4)(prompt), PromptedImageEncoder(clip).encode(images, prompts)


def attributes(clip):
    """What is written on each of open_clip's modules, by the module's name and the attribute's."""
    written = {}
    for name, module in clip.model.named_modules():
        written |= {(name, key): id(value) for key, value in vars(module).items()}
    return written


def test_nothing_is_written_on_open_clips_modules(fresh_clip, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    before = attributes(fresh_clip)
    encode(fresh_clip)
    assert attributes(fresh_clip) == before
    fresh_clip.compile_towers()
    with unchecked():  # the compiler cannot follow the checks of shapes
        encode(fresh_clip)
    assert attributes(fresh_clip) == before


def test_towers_are_made_once(fresh_clip):
    text = fresh_clip.text
    image = fresh_clip.image
    encode(fresh_clip)
    assert fresh_clip.text is text
    assert fresh_clip.image is image
    assert fresh_clip.double().text is text


@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_has_its_own_towers(fresh_clip, kind):
    expected = encode(fresh_clip)
    copy = COPIES[kind](fresh_clip)
    for value, same in zip(encode(copy), expected, strict=True):
        assert torch.equal(value, same)
    with torch.no_grad():
        for parameter in copy.model.parameters():
            parameter.mul_(1.5)
    changed = encode(copy)
    assert not torch.allclose(changed[0], expected[0])
    assert not torch.allclose(changed[1], expected[1])
    for value, same in zip(encode(fresh_clip), expected, strict=True):
        assert torch.equal(value, same)


@pytest.mark.parametrize("kind", COPIES)
def test_copies_of_compiled_towers_are_compiled(fresh_clip, kind, monkeypatch):
    compiled = []

    def watched(function):
        def run(*arguments, **options):
            compiled.append(function)
            return function(*arguments, **options)

        return run

    monkeypatch.setattr(torch, "compile", watched)
    expected = encode(fresh_clip)
    fresh_clip.compile_towers()
    for clip in (fresh_clip, COPIES[kind](fresh_clip)):
        compiled.clear()
        for value, same in zip(encode(clip), expected, strict=True):
            torch.testing.assert_close(value, same, atol=1e-5, rtol=1e-4)
        assert len(compiled) == len(clip.text.blocks) + len(clip.image.blocks)


def test_blocks_of_a_tower_can_be_listed(fresh_clip):
    assert list(fresh_clip.text.blocks) == list(fresh_clip.model.transformer.resblocks)
    assert fresh_clip.text.depth == len(fresh_clip.text.blocks) == 3


def test_a_weight_alone_decides_the_type_of_a_product():
    inputs, weight, bias = torch.randn(2, 3), torch.randn(4, 3), torch.randn(4)
    assert torch.equal(multiply(inputs, weight, bias), torch.nn.functional.linear(inputs, weight, bias))
    rounded = multiply(inputs, weight.bfloat16(), bias)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), multiply(inputs, weight, bias), atol=0.1, rtol=0.02)


def test_quick_gelu_equals_open_clips_module():
    points = torch.linspace(-9, 9, 183).view(3, 61)
    signal = torch.linspace(-1, 2, 183).view(3, 61)
    results = []
    for function in (QuickGELU.apply, OpenClipQuickGELU()):
        inputs = points.clone().requires_grad_()
        value = function(inputs)
        results.append((value.detach(), torch.autograd.grad(value, inputs, signal)[0]))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-6, rtol=1e-5)
    assert torch.autograd.gradcheck(QuickGELU.apply, points[:1].double().requires_grad_())
