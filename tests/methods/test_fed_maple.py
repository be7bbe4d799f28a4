"""FedMaPLe: both towers against plain ones, the words that a prompt starts from, and what is sent."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedvlp import FedMaPLe
from fedvlp.clip import zero_shot_text_features
from tests.helpers.slow import CLASSES, assert_same, slow_cross_entropy, spread

LABELS = torch.tensor([0, 2, 1, 1])


def make(clip, **options):
    torch.manual_seed(0)
    module = FedMaPLe(CLASSES, clip, **options)
    spread(module.trainable_by_name().values(), 0.2)
    return module


def run_blocks(blocks, tokens, prompts, places, mask=None):
    """open_clip's own blocks on one sequence, with the tokens at some places replaced before each of the first."""
    for index, block in enumerate(blocks):
        if index < len(prompts):
            tokens = torch.cat([tokens[: places[0]], prompts[index], tokens[places[-1] + 1 :]])
        tokens = block(tokens[None], attn_mask=mask)[0]
    return tokens


def text_feature(model, tokenizer, words, prompts):
    """w_c of one class: `[SOS][prompt] of a class.[EOT]` in a sequence of the full context."""
    length = prompts.shape[1]
    ids = tokenizer([" ".join(["x"] * length) + f" {words}."])[0]
    positions = model.positional_embedding
    first = prompts[0] + positions[1 : 1 + length]
    tokens = run_blocks(
        model.transformer.resblocks,
        model.token_embedding(ids) + positions,
        [first, *prompts[1:]],
        range(1, 1 + length),
        model.attn_mask,
    )
    return model.ln_final(tokens[ids.argmax()]) @ model.text_projection


def image_feature(model, image, prompts):
    """f(x) of one image: `[CLS][patches][prompt]`, the prompt without positions."""
    visual = model.visual
    length = prompts.shape[1]
    patches = visual.conv1(image[None]).flatten(2)[0].T
    tokens = torch.cat([visual.class_embedding[None], patches]) + visual.positional_embedding
    tokens = visual.ln_pre(torch.cat([tokens, prompts[0]]))
    count = len(tokens)
    first = visual.ln_pre(prompts[0])
    tokens = run_blocks(visual.transformer.resblocks, tokens, [first, *prompts[1:]], range(count - length, count))
    return visual.ln_post(tokens[0]) @ visual.proj


def reference_loss(module, images, words):
    """The cross-entropy, image by image and class by class."""
    model = module.clip.model
    visual = [
        torch.stack([vector @ weight + bias for vector in prompt])
        for prompt, weight, bias in zip(module.prompts, module.couplings.weight, module.couplings.bias, strict=True)
    ]
    texts = [text_feature(model, module.clip.tokenizer, word, module.prompts) for word in words]
    features = [image_feature(model, image, torch.stack(visual)) for image in images]
    return slow_cross_entropy(module.clip, features, texts, LABELS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["of a red circle", "of a star", "of a big square"]),
        ({"prompt_length": 5, "depth": 2, "init_words": None}, CLASSES),
    ],
)
def test_loss_and_gradients_are_those_of_plain_towers(clip, images, options, words):
    module = make(clip, **options)
    loss = module.training_step((images, LABELS), 0)
    expected = reference_loss(module, images, words)
    assert_same(loss, expected, list(module.trainable_by_name().values()))


@pytest.mark.parametrize("prompt_length", [1, 2, 4])
def test_the_first_text_features_are_those_of_the_words(clip, prompt_length):
    """Before training and with one block's prompt, the text is CLIP's template, but for its full stop."""
    module = FedMaPLe(CLASSES, clip, prompt_length=prompt_length, depth=1)
    features = F.normalize(module.prompted.text_features(module.deep_prompts()), dim=-1)
    torch.testing.assert_close(features, zero_shot_text_features(clip, CLASSES, 1), atol=1e-5, rtol=0)
