"""Towers in bfloat16: only products with large weights are, and nothing learned, normalised or added up."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from fedvlp.clip import PromptedImageEncoder, PromptedTextEncoder, load_clip
from fedvlp.clip.towers import blocks as towers
from fedvlp.utils.errors import UserError
from tests.helpers.text_features import NAMES

LARGE = ("attn.in_proj_weight", "attn.out_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


@pytest.fixture
def fresh_clip():
    """The tiny CLIP, for one test alone."""
    return load_clip("fedvlp-tiny")


@pytest.fixture
def half(fresh_clip):
    """A CLIP whose towers are cast to bfloat16."""
    fresh_clip.cast_towers(torch.bfloat16)
    return fresh_clip


def rounded(clip):
    """The same CLIP in float32, with the large weights rounded: what exact arithmetic makes of the same numbers."""
    same = copy.deepcopy(clip)
    for name, parameter in same.model.named_parameters():
        if "resblocks" in name and name.endswith(LARGE):
            parameter.copy_(parameter.bfloat16().float())
    return same


def images(clip, count=3):
    return torch.randn(count, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(0))


def all_features(clip):
    """Features of texts under a prompt, of images with one, of images, and the gradients of both prompts."""
    text_prompt = torch.full((1, 4, clip.text_width), 0.02, requires_grad=True)
    image_prompt = torch.full((2, clip.image_width), 0.1, requires_grad=True)
    texts = PromptedTextEncoder(clip, NAMES, prompt_length=4)(text_prompt)
    prompted = PromptedImageEncoder(clip)(images(clip), image_prompt[None]).features
    plain = clip.encode_image(images(clip))
    weights = torch.arange(texts.numel()).view_as(texts).cos()
    gradients = torch.autograd.grad((texts * weights).sum() + prompted.square().sum(), [text_prompt, image_prompt])
    return {"texts": texts, "prompted": prompted, "plain": plain, "of text": gradients[0], "of image": gradients[1]}


def test_large_weights_alone_are_rounded(half):
    for name, parameter in half.model.named_parameters():
        is_large = "resblocks" in name and name.endswith(LARGE)
        assert parameter.dtype == (torch.bfloat16 if is_large else torch.float32), name
        assert not parameter.requires_grad


def test_features_are_those_of_the_rounded_weights(fresh_clip):
    """Each product is rounded to 8 bits, so features agree to about one part in a hundred, whichever is the context."""
    expected = all_features(rounded(fresh_clip))
    single = all_features(fresh_clip)
    fresh_clip.cast_towers(torch.bfloat16)
    found = all_features(fresh_clip)
    with torch.autocast("cpu", torch.bfloat16):
        inside = all_features(fresh_clip)
    for name, value in found.items():
        assert value.dtype == torch.float32, name
        for same in (expected[name], single[name], inside[name]):
            cosine = torch.cosine_similarity(value.flatten(), same.flatten().float(), dim=0)
            assert cosine > 0.995, (name, cosine)
        assert not torch.equal(value, single[name]), name


@pytest.mark.parametrize("tiles", [False, True])
def test_attention_is_in_bfloat16_where_there_are_tiles(half, monkeypatch, tiles):
    monkeypatch.setattr(towers, "has_bfloat16_tiles", lambda: tiles)
    expected = torch.bfloat16 if tiles else torch.float32
    assert {blocks.compute_dtype for blocks in (half.text.blocks, half.image.blocks)} == {expected}
    assert all(value.isfinite().all() for value in all_features(half).values())
    assert half.text.blocks.dtype == half.image.blocks.dtype == torch.float32


def test_open_clips_own_text_pass_is_not_needed(fresh_clip):
    """It would add up tokens in bfloat16."""
    ids = fresh_clip.tokenizer(["a photo of a dog.", "a cat."])
    expected = fresh_clip.encode_text(ids)
    torch.testing.assert_close(fresh_clip.text.features(ids), expected, atol=1e-5, rtol=1e-4)
    fresh_clip.cast_towers(torch.bfloat16)
    assert torch.cosine_similarity(fresh_clip.encode_text(ids), expected).min() > 0.995


def pickled(clip):
    return pickle.loads(pickle.dumps(clip))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_copies_are_cast_as_well(half, copied):
    with torch.no_grad():
        assert torch.equal(copied(half).encode_image(images(half)), half.encode_image(images(half)))


def test_the_fingerprint_is_that_of_the_weights_as_loaded(fresh_clip):
    loaded = copy.deepcopy(fresh_clip).fingerprint()
    fresh_clip.cast_towers(torch.bfloat16)
    assert fresh_clip.fingerprint() == loaded


def test_rounded_weights_serve_no_other_precision(half):
    rounded_weight = half.model.visual.transformer.resblocks[0].mlp.c_fc.weight
    half.cast_towers(torch.bfloat16)
    assert half.model.visual.transformer.resblocks[0].mlp.c_fc.weight is rounded_weight
    with pytest.raises(UserError, match=r"rounded to bfloat16.*Load it again"):
        half.cast_towers(torch.float32)


def test_float32_changes_nothing(fresh_clip):
    before = dict(fresh_clip.model.named_parameters())
    fresh_clip.cast_towers(torch.float32)
    assert all(parameter is before[name] for name, parameter in fresh_clip.model.named_parameters())
