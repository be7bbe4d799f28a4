"""Blocks, chunked attention, copies and bfloat16, against open_clip's own modules and plain loops."""

import pickle
from copy import deepcopy

import pytest
import torch
from open_clip.transformer import QuickGELU as OpenClipQuickGELU

from fedvlp.clip import PromptedImageEncoder, PromptedTextEncoder, blocks, load_clip
from fedvlp.clip.blocks import QuickGELU, attend
from fedvlp.clip.packing import make_rows
from fedvlp.utils.errors import UserError

NAMES = ["Alarm_Clock", "dog", "a very long name of a thing", "T-shirt", "TV"]
COPIES = {"deepcopy": deepcopy, "pickle": lambda clip: pickle.loads(pickle.dumps(clip))}


@pytest.fixture
def fresh_clip(make_clip, configs):
    return make_clip(configs["vit"])


def encode(clip):
    """Encode texts and images with both towers."""
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randn(4, 32, generator=generator)
    prompts = torch.randn(2, 3, 48, generator=generator)
    images = torch.randn(2, 3, 32, 32, generator=generator)
    return PromptedTextEncoder(clip, NAMES, prompt_length=4)(prompt), PromptedImageEncoder(clip).encode(images, prompts)


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


def run_with_branches(modules, branches, hidden, mask=None):
    """Run open_clip's own blocks in order; [sequences, tokens, width]."""
    for index, module in enumerate(modules):
        added = branches[index](module.ln_1(hidden)) if index in branches else 0
        hidden = module(hidden, attn_mask=mask) + added
    return hidden


@pytest.mark.parametrize("packs", [True, False])
def test_branches_in_the_text_tower(fresh_clip, packs):
    """Branches on the first and last of three blocks; packed texts run the last one only for their ends."""
    branches = {0: torch.sin, 2: torch.cos}
    model = fresh_clip.model
    rows = make_rows(fresh_clip.text, fresh_clip.tokenize(NAMES), packs)
    ids = fresh_clip.tokenizer(NAMES)
    tokens = model.token_embedding(ids) + model.positional_embedding
    hidden = run_with_branches(model.transformer.resblocks, branches, tokens, model.attn_mask)
    expected = model.ln_final(hidden[range(len(ids)), ids.argmax(1)]) @ model.text_projection
    torch.testing.assert_close(
        rows.encode_words(fresh_clip.text.add_branches(branches)), expected, atol=1e-5, rtol=1e-4
    )


def test_branches_in_the_image_tower(fresh_clip):
    branches = {0: torch.sin, 1: torch.cos}
    tower = fresh_clip.image.add_branches(branches)
    tokens = tower.embed(images(fresh_clip))
    expected = run_with_branches(fresh_clip.model.visual.transformer.resblocks, branches, tokens)
    torch.testing.assert_close(tower.encode(images(fresh_clip))[1], expected, atol=1e-5, rtol=1e-4)
    places = torch.tensor([3, 0])
    last = tower.blocks.run_last(tower.blocks.run_before_last(tokens), places)
    torch.testing.assert_close(last, expected[:, places], atol=1e-5, rtol=1e-4)


LARGE = ("attn.in_proj_weight", "attn.out_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


@pytest.fixture
def tiny():
    """A separate tiny CLIP for each test."""
    return load_clip("fedvlp-tiny")


@pytest.fixture
def half(tiny):
    """A CLIP with towers cast to bfloat16."""
    tiny.cast_towers(torch.bfloat16)
    return tiny


def rounded(clip):
    """The same CLIP in float32 with rounded large weights: the reference in exact arithmetic."""
    same = deepcopy(clip)
    for name, parameter in same.model.named_parameters():
        if "resblocks" in name and name.endswith(LARGE):
            parameter.copy_(parameter.bfloat16().float())
    return same


def images(clip, count=3):
    return torch.randn(count, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(0))


def all_features(clip):
    """Compute features of prompted texts, prompted images and plain images, and the gradients of both prompts."""
    text_prompt = torch.full((1, 4, clip.text_width), 0.02, requires_grad=True)
    image_prompt = torch.full((2, clip.image_width), 0.1, requires_grad=True)
    texts = PromptedTextEncoder(clip, NAMES, prompt_length=4)(text_prompt)
    prompted = PromptedImageEncoder(clip)(images(clip), image_prompt[None]).features
    plain = clip.encode_image(images(clip))
    weights = torch.arange(texts.numel()).view_as(texts).cos()
    gradients = torch.autograd.grad((texts * weights).sum() + prompted.square().sum(), [text_prompt, image_prompt])
    return {"texts": texts, "prompted": prompted, "plain": plain, "of text": gradients[0], "of image": gradients[1]}


def test_only_large_weights_are_rounded(half):
    for name, parameter in half.model.named_parameters():
        is_large = "resblocks" in name and name.endswith(LARGE)
        assert parameter.dtype == (torch.bfloat16 if is_large else torch.float32), name
        assert not parameter.requires_grad


def test_features_are_those_of_the_rounded_weights(tiny):
    """Each product is rounded to 8 bits, so features agree to about one part in a hundred in any context."""
    expected = all_features(rounded(tiny))
    single = all_features(tiny)
    tiny.cast_towers(torch.bfloat16)
    found = all_features(tiny)
    with torch.autocast("cpu", torch.bfloat16):
        inside = all_features(tiny)
    for name, value in found.items():
        assert value.dtype == torch.float32, name
        for same in (expected[name], single[name], inside[name]):
            cosine = torch.cosine_similarity(value.flatten(), same.flatten().float(), dim=0)
            assert cosine > 0.995, (name, cosine)
        assert not torch.equal(value, single[name]), name


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("is_kept", [False, True])
def test_attention_in_bfloat16_matches_the_kernel_in_double(monkeypatch, is_kept, masked):
    """Compare values and gradients of both implementations, which round each step to 8 bits."""
    monkeypatch.setattr(blocks, "keeps_scores", lambda query, key: is_kept and query.dtype == torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    parts = [2 * torch.randn(2, length, 48, generator=generator).bfloat16() for length in (5, 7, 7)]
    signal = torch.randn(2, 5, 48, generator=generator)
    mask = torch.full((5, 7), -torch.inf).triu(3) if masked else None
    results = []
    for dtype in (torch.bfloat16, torch.float64):
        inputs = [part.to(dtype).requires_grad_() for part in parts]
        read = attend(*inputs, 3, None if mask is None else mask.to(dtype))
        gradients = torch.autograd.grad(read, inputs, signal.to(dtype))
        results.append([read, *gradients])
    for found, exact in zip(*results, strict=True):
        assert found.dtype == torch.bfloat16
        assert (found - exact).norm() < 0.02 * exact.norm()


def test_the_fingerprint_does_not_change_with_rounding(tiny):
    loaded = deepcopy(tiny).fingerprint()
    tiny.cast_towers(torch.bfloat16)
    assert tiny.fingerprint() == loaded


def test_rounded_weights_serve_no_other_precision(half):
    rounded_weight = half.model.visual.transformer.resblocks[0].mlp.c_fc.weight
    half.cast_towers(torch.bfloat16)
    assert half.model.visual.transformer.resblocks[0].mlp.c_fc.weight is rounded_weight
    with pytest.raises(UserError, match=r"rounded to bfloat16.*Load it again"):
        half.cast_towers(torch.float32)
