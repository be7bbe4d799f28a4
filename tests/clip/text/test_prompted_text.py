"""Text features under prompts against full sequences of 77 tokens, deeper prompts replaced by hooks on the blocks."""

from __future__ import annotations

import itertools

import open_clip
import pytest
import torch

from fedvlp.clip import CLIPSpec, PromptedTextEncoder, load_clip
from fedvlp.utils.errors import UserError
from tests.helpers.text_features import NAMES, assert_same, coop_features, features_and_gradient


def deep_features(clip, names, prompts, position):
    """Text features as deep-prompt code makes them: full sequences, whose prompt is replaced by hooks on the blocks.

    `prompts` [J + 1, L, D]: the first goes into the tower, the others replace it before the following blocks.
    """
    tower = getattr(clip.model, "text", clip.model)
    length = prompts.shape[1]
    before = {"end": length, "middle": length // 2, "front": 0}[position]
    starts = [1 + (0 if position == "end" else len(clip.tokenizer.encode(name))) for name in names]

    def replacing(level):
        def hook(block, arguments):
            hidden = arguments[0].clone()
            for row, start in enumerate(starts):
                hidden[row, 1 : 1 + before] = prompts[level, :before]
                hidden[row, start + before : start + length] = prompts[level, before:]
            return (hidden, *arguments[1:])

        return hook

    blocks = tower.transformer.resblocks
    handles = [blocks[level].register_forward_pre_hook(replacing(level)) for level in range(1, len(prompts))]
    try:
        return coop_features(clip, names, prompts[0], position)
    finally:
        for handle in handles:
            handle.remove()


LAYOUTS = [*itertools.product(["vit"], ["end", "middle", "front"], ["packed", "cut", "plain"])]


@pytest.mark.parametrize(
    ("kind", "position", "layout"), [*LAYOUTS, ("custom", "end", "packed"), ("quick", "middle", "cut")]
)
@pytest.mark.parametrize("levels", [0, 2])
def test_equals_full_sequences(make_clip, configs, kind, position, layout, levels):
    clip = make_clip(configs[kind])
    torch.manual_seed(0)
    prompts = torch.randn(1 + levels, 5, 32)
    signal = torch.randn(len(NAMES), 24)
    encoder = PromptedTextEncoder(clip, NAMES, prompt_length=5, class_position=position, layout=layout)
    found = features_and_gradient(lambda p: encoder(p[0], p[1:] if levels else None), prompts, signal)
    expected = features_and_gradient(lambda p: deep_features(clip, encoder.class_names, p, position), prompts, signal)
    assert_same(found, expected)
    if levels:
        assert not torch.allclose(found[0], encoder(prompts[0]), atol=1e-3)


@pytest.mark.parametrize("position", ["end", "front"])
@pytest.mark.parametrize("layout", ["packed", "plain"])
def test_prompts_of_each_class_equal_full_sequences(clip, position, layout):
    """Class by class, the prompt of the class in front of it; two prompts for each, and their gradients."""
    torch.manual_seed(0)
    prompts = torch.randn(2, len(NAMES), 4, 32)
    signal = torch.randn(2, len(NAMES), 24)
    encoder = PromptedTextEncoder(
        clip, NAMES, prompt_length=4, class_position=position, layout=layout, class_specific=True
    )

    def one_by_one(values):
        rows = []
        for image in values:
            alone = [coop_features(clip, [encoder.class_names[c]], image[c], position)[0] for c in range(len(NAMES))]
            rows.append(torch.stack(alone))
        return torch.stack(rows)

    found = features_and_gradient(lambda values: encoder(values.flatten(1, 2)), prompts, signal)
    assert_same(found, features_and_gradient(one_by_one, prompts, signal))


@pytest.mark.parametrize("token_budget", [1, 20, 25, 1000])
def test_chunks_change_nothing(clip, token_budget):
    torch.manual_seed(0)
    prompt = torch.randn(2, 3, 4, 32)
    signal = torch.randn(2, 3, len(NAMES), 24)
    whole = PromptedTextEncoder(clip, NAMES, prompt_length=4, layout="plain")
    chunked = PromptedTextEncoder(clip, NAMES, prompt_length=4, token_budget=token_budget)
    assert chunked.rows.num_chunks == {1: 5, 20: 3, 25: 2, 1000: 1}[token_budget]
    assert_same(features_and_gradient(chunked, prompt, signal), features_and_gradient(whole, prompt, signal))


@pytest.mark.parametrize("token_budget", [1, 20, 1000])
def test_blocks_of_another_kind_in_chunks(make_clip, configs, token_budget):
    class Block(open_clip.transformer.ResidualAttentionBlock):
        """The same, but of a type that is run as it is."""

    clip = make_clip(configs["vit"])
    prompts = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(0))
    encoder = PromptedTextEncoder(clip, NAMES, prompt_length=4, token_budget=token_budget)
    expected = encoder(prompts)
    for block in clip.model.transformer.resblocks:
        block.__class__ = Block
    torch.testing.assert_close(encoder(prompts), expected, atol=1e-5, rtol=1e-5)


def test_prompts_without_gradients_are_encoded_again_only_when_they_change(clip, monkeypatch):
    encoder = PromptedTextEncoder(clip, NAMES, prompt_length=4)
    encode = encoder._encode
    calls = []

    def counted(*prompts):
        calls.append(1)
        return encode(*prompts)

    monkeypatch.setattr(encoder, "_encode", counted)
    prompt = torch.randn(4, 32)
    deeper = torch.randn(1, 4, 32)
    for _ in range(2):
        assert torch.equal(encoder(prompt), encode(prompt))
        assert torch.equal(encoder(prompt, deeper), encode(prompt, deeper))
    assert len(calls) == 2
    assert torch.equal(encoder(prompt + 1), encode(prompt + 1))
    encoder(prompt.requires_grad_()).sum().backward()
    assert prompt.grad.any()


def test_batches_without_gradients_in_parts(clip):
    prompts = torch.randn(2, 3, 4, 32)
    deeper = torch.randn(2, 3, 1, 4, 32)
    encoder = PromptedTextEncoder(clip, NAMES, prompt_length=4)
    for given in ((prompts, None), (prompts, deeper)):
        for tokens in (1, 2 * encoder.rows.ids.numel()):
            found = encoder._encode(*given, tokens_at_once=tokens)
            torch.testing.assert_close(found, encoder(*given), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("layout", ["packed", "cut", "plain"])
def test_a_batch_of_prompts_is_each_prompt_alone(clip, layout):
    torch.manual_seed(0)
    prompts = torch.randn(2, 3, 4, 32)
    encoder = PromptedTextEncoder(clip, NAMES, prompt_length=4, layout=layout)
    together = encoder(prompts)
    assert together.shape == (2, 3, len(NAMES), 24)
    for first in range(2):
        for second in range(3):
            torch.testing.assert_close(together[first, second], encoder(prompts[first, second]), atol=1e-6, rtol=1e-5)


def test_the_order_of_classes_does_not_matter(clip):
    torch.manual_seed(0)
    prompt = torch.randn(4, 32)
    order = [3, 1, 4, 0, 2]
    straight = PromptedTextEncoder(clip, NAMES, prompt_length=4)(prompt)
    mixed = PromptedTextEncoder(clip, [NAMES[index] for index in order], prompt_length=4)(prompt)
    torch.testing.assert_close(mixed, straight[order], atol=1e-6, rtol=1e-5)


def test_a_prompt_of_words_gives_the_words_features(clip):
    encoder = PromptedTextEncoder(clip, ["dog", "alarm clock"], prompt_length=4)
    prompt = encoder.initial_prompt("a photo of a")
    expected = clip.encode_text(clip.tokenizer(["a photo of a dog.", "a photo of a alarm clock."]))
    torch.testing.assert_close(encoder(prompt), expected, atol=1e-5, rtol=1e-5)


def test_initial_prompt_is_seeded_and_small(clip):
    encoder = PromptedTextEncoder(clip, NAMES, prompt_length=16)
    first, again = (encoder.initial_prompt(generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)
    assert 0.015 < float(first.std()) < 0.025
    words = encoder.initial_prompt("a photo", generator=torch.Generator().manual_seed(3))
    assert torch.equal(words[2:], first[2:])
    assert not torch.equal(words[:2], first[:2])


def test_words_longer_than_the_prompt_are_refused(clip):
    encoder = PromptedTextEncoder(clip, NAMES, prompt_length=2)
    with pytest.raises(UserError, match="at least 4"):
        encoder.initial_prompt("a photo of a")


def test_a_prompt_that_leaves_no_room_is_refused(clip):
    PromptedTextEncoder(clip, ["dog"], prompt_length=73)
    with pytest.raises(UserError, match="at most 73"):
        PromptedTextEncoder(clip, ["dog"], prompt_length=74)
    with pytest.raises(UserError, match="'w w w"):
        PromptedTextEncoder(clip, ["dog", "w " * 90], prompt_length=4)


def test_towers_that_are_not_causal_are_refused(make_clip, configs):
    text = {**configs["custom"]["text_cfg"], "no_causal_mask": True, "pool_type": "last"}
    with pytest.raises(UserError, match="causal"):
        PromptedTextEncoder(make_clip({**configs["custom"], "text_cfg": text}), NAMES, prompt_length=4)


@pytest.mark.parametrize("token_budget", [1, 20, 1000])
def test_batches_of_deeper_prompts_in_chunks(clip, token_budget):
    torch.manual_seed(0)
    prompts = torch.randn(2, 3, 3, 4, 32)
    signal = torch.randn(2, 3, len(NAMES), 24)
    whole = PromptedTextEncoder(clip, NAMES, prompt_length=4, layout="plain")
    chunked = PromptedTextEncoder(clip, NAMES, prompt_length=4, token_budget=token_budget)
    found = features_and_gradient(lambda p: chunked(p[:, :, 0], p[:, :, 1:]), prompts, signal)
    assert_same(found, features_and_gradient(lambda p: whole(p[:, :, 0], p[:, :, 1:]), prompts, signal))
    for first in range(2):
        for second in range(3):
            alone = chunked(prompts[first, second, 0], prompts[first, second, 1:])
            torch.testing.assert_close(found[0][first, second], alone, atol=1e-6, rtol=1e-5)


def test_no_deeper_prompts_are_a_prompt_alone(clip):
    torch.manual_seed(0)
    prompt = torch.randn(4, 32)
    encoder = PromptedTextEncoder(clip, NAMES, prompt_length=4)
    assert torch.equal(encoder(prompt, prompt.new_empty(0, 4, 32)), encoder(prompt))


def test_more_prompts_than_blocks_are_refused(clip):
    encoder = PromptedTextEncoder(clip, NAMES, prompt_length=4)
    with pytest.raises(UserError, match="at most 3"):
        encoder(torch.zeros(4, 32), torch.zeros(3, 4, 32))


def test_vit_b_16():
    clip = load_clip(CLIPSpec("ViT-B-16", "random"))
    torch.manual_seed(0)
    prompts = 0.02 * torch.randn(12, 8, 512)
    signal = torch.randn(len(NAMES), 512)
    plain = PromptedTextEncoder(clip, NAMES, prompt_length=8, layout="plain")
    packed = PromptedTextEncoder(clip, NAMES, prompt_length=8)
    expected = features_and_gradient(lambda p: plain(p[0], p[1:]), prompts, signal)
    assert_same(features_and_gradient(lambda p: packed(p[0], p[1:]), prompts, signal), expected)
