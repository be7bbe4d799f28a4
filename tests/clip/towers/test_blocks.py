"""Towers own their packed weights and compiled steps: open_clip's modules get none, and copies begin without."""

from __future__ import annotations

import pickle
from copy import deepcopy
from functools import partial

import pytest
import torch

from fedvlp.clip import CLIPSpec, PromptedImageEncoder, PromptedTextEncoder
from fedvlp.clip.towers import packed_weights
from tests.helpers.shapes import unchecked
from tests.helpers.text_features import NAMES

needs_kernel = pytest.mark.skipif(not packed_weights.has_kernel(), reason="no oneDNN here")
COPIES = {"deepcopy": deepcopy, "pickle": lambda clip: pickle.loads(pickle.dumps(clip))}


@pytest.fixture
def packing(monkeypatch):
    """All weights are large enough to be packed."""
    monkeypatch.setattr(packed_weights, "_LEAST_ELEMENTS", 0)


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
    found = {}
    for name, module in clip.model.named_modules():
        found |= {(name, key): id(value) for key, value in vars(module).items()}
    return found


def num_packed(clip):
    return clip.text.blocks.num_packed, clip.image.blocks.num_packed


def test_nothing_is_written_on_open_clips_modules(packing, fresh_clip, monkeypatch):
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


@needs_kernel
@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_has_towers_of_its_own_and_no_packed_weights(packing, fresh_clip, kind):
    expected = encode(fresh_clip)
    assert all(num_packed(fresh_clip))
    copy = COPIES[kind](fresh_clip)
    assert not any(num_packed(copy))
    for found, same in zip(encode(copy), expected, strict=True):
        assert torch.equal(found, same)
    with torch.no_grad():
        for parameter in copy.model.parameters():
            parameter.mul_(1.5)
    changed = encode(copy)
    assert not torch.allclose(changed[0], expected[0])
    assert not torch.allclose(changed[1], expected[1])
    for found, same in zip(encode(fresh_clip), expected, strict=True):
        assert torch.equal(found, same)


@needs_kernel
def test_weights_that_move_are_packed_anew(packing, fresh_clip):
    before = encode(fresh_clip)
    encoder = PromptedTextEncoder(fresh_clip, NAMES, prompt_length=4)
    encoder.double()
    assert num_packed(fresh_clip) == (0, 0)
    encoder.float()
    assert num_packed(fresh_clip) == (0, 0)
    for found, same in zip(encode(fresh_clip), before, strict=True):
        assert torch.equal(found, same)
    assert all(num_packed(fresh_clip))


@needs_kernel
def test_weights_are_packed_where_that_is_asked_for(packing, make_clip, configs):
    clip = make_clip(configs["vit"], spec=CLIPSpec("custom", prepack=False))
    encode(clip)
    assert num_packed(clip) == (0, 0)


@pytest.mark.parametrize("kind", COPIES)
def test_compiled_towers_and_their_copies_are_not_packed(packing, fresh_clip, kind, monkeypatch):
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
        for found, same in zip(encode(clip), expected, strict=True):
            torch.testing.assert_close(found, same, atol=1e-5, rtol=1e-4)
        assert len(compiled) == len(clip.text.blocks) + len(clip.image.blocks)
        assert num_packed(clip) == (0, 0)


def test_blocks_of_a_tower_can_be_listed(fresh_clip):
    assert list(fresh_clip.text.blocks) == list(fresh_clip.model.transformer.resblocks)
    assert fresh_clip.text.depth == len(fresh_clip.text.blocks) == 3
