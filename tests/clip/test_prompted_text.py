"""Prompted text features against full sequences of 77 tokens; pairs of class and domain; the feature cache."""

import itertools

import pytest
import torch
from torch.nn.functional import normalize

from fedvlp.clip import DomainTextEncoder, PromptedTextEncoder, zero_shot_text_features
from fedvlp.clip import prompted_text as domain_text
from fedvlp.clip.packing import encode_side_by_side
from fedvlp.clip.prompted_text import PromptFeatureCache
from fedvlp.utils.errors import UserError
from tests.helpers.slow import plain_encoder

NAMES = ["Alarm_Clock", "dog", "a very long name of a thing", "T-shirt", "TV"]


def coop_features(clip, names, prompt, position):
    """Compute text features as CoOp's code does: a full sequence for each class through open_clip's own tower."""
    tower = getattr(clip.model, "text", clip.model)
    length = len(prompt)
    ids = clip.tokenizer([" ".join(["X"] * length) + f" {name}." for name in names])
    plain = clip.tokenizer([f"{name}." for name in names])
    embedded = tower.token_embedding(plain)
    rows = []
    for index, name in enumerate(names):
        number = len(clip.tokenizer.encode(name))
        before = {"end": length, "middle": length // 2, "front": 0}[position]
        row = embedded[index]
        parts = [row[:1], prompt[:before], row[1 : 1 + number], prompt[before:], row[1 + number : 77 - length]]
        rows.append(torch.cat(parts))
    hidden = tower.transformer(torch.stack(rows) + tower.positional_embedding, attn_mask=tower.attn_mask)
    ends = tower.ln_final(hidden)[torch.arange(len(names)), ids.argmax(dim=-1)]
    return clip.model.text.text_projection(ends) if hasattr(clip.model, "text") else ends @ tower.text_projection


def features_and_gradient(function, prompt, signal):
    """Compute a prompt's features, and its gradient for a given gradient of the features."""
    prompt = prompt.clone().requires_grad_()
    features = function(prompt)
    (normalize(features, dim=-1) * signal).sum().backward()
    return features.detach(), prompt.grad


def assert_same(found, expected):
    """Fail unless features match within 1e-5, and gradients within 1e-4 of the largest one."""
    assert (found[0] - expected[0]).abs().max() < 1e-5
    assert (found[1] - expected[1]).abs().max() < 1e-4 * expected[1].abs().max()


def deep_features(clip, names, prompts, position):
    """Compute text features as deep-prompt code does: full sequences, with prompts replaced by hooks on blocks.

    `prompts` [J + 1, L, D]: the first enters the tower, the others replace it before the following blocks.
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


ENCODERS = [*itertools.product(["vit"], ["end", "front"], [PromptedTextEncoder, plain_encoder], [2])]
ENCODERS += [("vit", "middle", PromptedTextEncoder, 2), ("vit", "middle", plain_encoder, 0)]
ENCODERS += [("custom", "end", PromptedTextEncoder, 0), ("quick", "middle", PromptedTextEncoder, 2)]


@pytest.mark.parametrize(("kind", "position", "make_encoder", "levels"), ENCODERS)
def test_equals_full_sequences(make_clip, configs, kind, position, make_encoder, levels):
    clip = make_clip(configs[kind])
    torch.manual_seed(0)
    prompts = torch.randn(1 + levels, 5, 32)
    signal = torch.randn(len(NAMES), 24)
    encoder = make_encoder(clip, NAMES, prompt_length=5, class_position=position)
    found = features_and_gradient(lambda p: encoder(p[0], p[1:] if levels else None), prompts, signal)
    expected = features_and_gradient(lambda p: deep_features(clip, encoder.class_names, p, position), prompts, signal)
    assert_same(found, expected)
    if levels:
        assert not torch.allclose(found[0], encoder(prompts[0]), atol=1e-3)


@pytest.mark.parametrize(("token_budget", "levels"), [(1, 2), (20, 0), (25, 2), (1000, 0)])
def test_chunks_change_nothing(clip, token_budget, levels):
    """Each prompt of a batch is encoded as if it were the only one."""
    torch.manual_seed(0)
    prompts = torch.randn(2, 3, 1 + levels, 4, 32)
    signal = torch.randn(2, 3, len(NAMES), 24)
    whole = plain_encoder(clip, NAMES, prompt_length=4)
    chunked = PromptedTextEncoder(clip, NAMES, prompt_length=4, token_budget=token_budget)
    assert chunked.rows.num_chunks == {1: 5, 20: 3, 25: 2, 1000: 1}[token_budget]

    def encode(encoder, given):
        return encoder(given[..., 0, :, :], given[..., 1:, :, :] if levels else None)

    found = features_and_gradient(lambda given: encode(chunked, given), prompts, signal)
    assert_same(found, features_and_gradient(lambda given: encode(whole, given), prompts, signal))
    for alone, features in zip(prompts.flatten(0, 1), found[0].flatten(0, 1), strict=True):
        torch.testing.assert_close(features, encode(chunked, alone), atol=1e-6, rtol=1e-5)


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


def test_a_prompt_that_is_too_long_is_rejected(clip):
    PromptedTextEncoder(clip, ["dog"], prompt_length=73)
    with pytest.raises(UserError, match="at most 73"):
        PromptedTextEncoder(clip, ["dog"], prompt_length=74)
    with pytest.raises(UserError, match=r"the class 'w w .* make 86 tokens, .* Use a shorter name"):
        PromptedTextEncoder(clip, ["dog", "w " * 79], prompt_length=4)


def test_more_prompts_than_blocks_are_refused(clip):
    encoder = PromptedTextEncoder(clip, NAMES, prompt_length=4)
    with pytest.raises(UserError, match="at most 3"):
        encoder(torch.zeros(4, 32), torch.zeros(3, 4, 32))


CLASSES = ["red circle", "star"]
DOMAINS = ["art_painting", "photo", "sketch"]


@pytest.fixture
def text(clip):
    return DomainTextEncoder(clip, CLASSES, DOMAINS, prompt_length=5)


def plain(clip, name, prompt):
    return plain_encoder(clip, [name], prompt_length=5)(prompt)[0]


def prompts(clip, count):
    return torch.randn(count, 5, clip.text_width, generator=torch.Generator().manual_seed(0))


def test_one_prompt_has_the_class_before_the_domain_and_each_domains_prompt_behind_it(clip, text):
    own = prompts(clip, 3)
    under_one, under_each = text.encode_with_prompt(own[0]), text.encode_with_domain_prompts(own)
    for c, name in enumerate(CLASSES):
        for m, domain in enumerate(("art painting", "photo", "sketch")):
            of_both = plain(clip, f"{name} with the domain of {domain}", own[0])
            assert torch.allclose(under_one[c, m], of_both, atol=1e-4)
            assert torch.allclose(under_each[c, m], plain(clip, f"{domain} {name}", own[m]), atol=1e-4)
    expected = zero_shot_text_features(clip, ["star with the domain of photo"])[0]
    assert torch.allclose(text.encode_with_prompt(None)[1, 1], expected, atol=1e-5)


def test_frozen_domains_get_no_gradient_and_the_same_features(clip, text):
    own = prompts(clip, 3).requires_grad_()
    found = text.encode_with_domain_prompts(own, learning=torch.tensor([1, 1]))
    torch.testing.assert_close(found, text.encode_with_domain_prompts(own), atol=1e-6, rtol=1e-5)
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


def test_frozen_prompts_are_encoded_only_when_they_change(clip, text, monkeypatch):
    calls = []

    def counted(*given):
        calls.append(1)
        return encode_side_by_side(*given)

    monkeypatch.setattr(domain_text, "encode_side_by_side", counted)
    own = prompts(clip, 3).requires_grad_()
    for _ in range(2):
        text.encode_with_domain_prompts(own, learning=torch.tensor([1]))
    assert len(calls) == 3  # learning prompts twice, the others once
    with torch.no_grad():
        own[0] += 1
    torch.testing.assert_close(
        text.encode_with_domain_prompts(own, learning=torch.tensor([1])), text.encode_with_domain_prompts(own)
    )


class Counted:
    """A function of prompts that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, *prompts):
        self.calls += 1
        return sum(prompts) * 2


@pytest.fixture
def function():
    return Counted()


def test_the_oldest_is_dropped(function):
    cache = PromptFeatureCache()
    prompts = [torch.full((1,), float(value)) for value in range(9)]
    for prompt in [*prompts, *prompts[1:]]:
        cache("f", function, prompt)
    assert function.calls == 9
    cache("f", function, prompts[0])
    assert function.calls == 10


def test_the_cache_distinguishes_modes(function):
    cache = PromptFeatureCache()
    prompt = torch.ones(2, 3)
    with torch.inference_mode():
        cache("f", function, prompt)
    assert not cache("f", function, prompt).is_inference()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cache("f", function, prompt)
    assert function.calls == 3
