"""Prompts of several blocks against full sequences whose prompt is replaced by hooks on the blocks."""

from __future__ import annotations

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


@pytest.mark.parametrize("kind", ["vit", "custom", "quick"])
@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize("layout", ["packed", "cut", "plain"])
@pytest.mark.parametrize("levels", [1, 2])
def test_deeper_prompts_equal_full_sequences(make_clip, configs, kind, position, layout, levels):
    clip = make_clip(configs[kind])
    torch.manual_seed(0)
    prompts = torch.randn(1 + levels, 5, 32)
    signal = torch.randn(len(NAMES), 24)
    encoder = PromptedTextEncoder(clip, NAMES, prompt_length=5, class_position=position, layout=layout)
    found = features_and_gradient(lambda p: encoder(p[0], p[1:]), prompts, signal)
    expected = features_and_gradient(lambda p: deep_features(clip, encoder.class_names, p, position), prompts, signal)
    assert_same(found, expected)
    assert not torch.allclose(found[0], encoder(prompts[0]), atol=1e-3)


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


def test_deeper_prompts_of_vit_b_16():
    clip = load_clip(CLIPSpec("ViT-B-16", "random"))
    torch.manual_seed(0)
    prompts = 0.02 * torch.randn(12, 8, 512)
    signal = torch.randn(len(NAMES), 512)
    plain = PromptedTextEncoder(clip, NAMES, prompt_length=8, layout="plain")
    packed = PromptedTextEncoder(clip, NAMES, prompt_length=8)
    expected = features_and_gradient(lambda p: plain(p[0], p[1:]), prompts, signal)
    assert_same(features_and_gradient(lambda p: packed(p[0], p[1:]), prompts, signal), expected)
