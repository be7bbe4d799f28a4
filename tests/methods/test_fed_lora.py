"""LoRA: both towers against plain ones with a second path of low rank, and what leaves zero-shot CLIP as it is."""

from __future__ import annotations

import copy

import pytest
import torch

from fedvlp import FedLoRA, PFedMMA, ZeroShotCLIP
from fedvlp.clip import load_clip
from fedvlp.utils.errors import UserError
from tests.helpers.made_up_clips import made_up_clip
from tests.helpers.made_up_image_towers import image_clip, vision
from tests.helpers.slow import CLASSES, assert_same, slow_cross_entropy, spread

LABELS = torch.tensor([0, 2, 1, 1])


def make(clip, **options):
    torch.manual_seed(0)
    module = FedLoRA(CLASSES, clip, **options)
    spread([module.text_updates.up, module.image_updates.up], 0.3)
    return module


def attention(block, updates, index, hidden, is_causal):
    """Self-attention of one sequence [tokens, W], head by head: h = W x + b + s B A x for query, key and value."""
    width = hidden.shape[-1]
    maps = []
    for kind in range(3):
        rows = slice(kind * width, (kind + 1) * width)
        frozen = hidden @ block.attn.in_proj_weight[rows].T + block.attn.in_proj_bias[rows]
        maps.append(frozen + updates.scale * hidden @ updates.down[index, kind].T @ updates.up[index, kind].T)
    heads = []
    for columns in torch.arange(width).chunk(block.attn.num_heads):
        query, key, value = (each[:, columns] for each in maps)
        scores = query @ key.T / len(columns) ** 0.5
        if is_causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(-1) @ value)
    return torch.cat(heads, -1) @ block.attn.out_proj.weight.T + block.attn.out_proj.bias


def run_blocks(blocks, updates, hidden, is_causal):
    for index, block in enumerate(blocks):
        hidden = hidden + attention(block, updates, index, block.ln_1(hidden), is_causal)
        hidden = hidden + block.mlp(block.ln_2(hidden))
    return hidden


def text_feature(module, name):
    model = module.clip.model
    ids = module.clip.tokenizer([f"a photo of a {name}."])[0]
    tokens = model.token_embedding(ids) + model.positional_embedding
    tokens = run_blocks(model.transformer.resblocks, module.text_updates, tokens, is_causal=True)
    return model.ln_final(tokens[ids.argmax()]) @ model.text_projection


def image_feature(module, image):
    visual = module.clip.model.visual
    patches = visual.conv1(image[None]).flatten(2)[0].T
    tokens = torch.cat([visual.class_embedding[None], patches]) + visual.positional_embedding
    tokens = run_blocks(visual.transformer.resblocks, module.image_updates, visual.ln_pre(tokens), is_causal=False)
    return visual.ln_post(tokens[0]) @ visual.proj


@pytest.mark.parametrize("options", [{}, {"rank": 5, "alpha": 3.0}])
def test_loss_and_gradients_are_those_of_a_second_path(clip, images, options):
    module = make(clip, **options)
    loss = module.training_step((images, LABELS), 0)
    texts = [text_feature(module, name) for name in CLASSES]
    expected = slow_cross_entropy(clip, [image_feature(module, image) for image in images], texts, LABELS)
    assert not torch.allclose(module(images), ZeroShotCLIP(CLASSES, clip)(images), atol=0.1)
    parameters = list(module.trainable_by_name().values())
    assert len(parameters) == 4
    assert_same(loss, expected, parameters)


@pytest.mark.parametrize(("text", "image"), [("clip", "biomed"), ("biomedclip", "eva02"), ("nllb", "siglip")])
def test_updates_of_other_towers_are_added_to_their_weights(text, image, tmp_path):
    """As a model computes whose maps have these weights."""
    clip = made_up_clip(text, tmp_path, vision(image))
    module = make(clip, alpha=0.05)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    merged = copy.deepcopy(clip)
    for kind, updates in {"text": module.text_updates, "image": module.image_updates}.items():
        for index, names in enumerate(module.adapted.names[kind]):
            maps = (updates.scale * updates.up[index] @ updates.down[index]).detach()  # [3, W, W]
            for name, update in zip(names, [maps.flatten(0, 1)] if len(names) == 1 else maps, strict=True):
                assert f".{index}." in name
                merged.get_parameter(name.removeprefix("clip.")).data += update
    torch.testing.assert_close(module(images), ZeroShotCLIP(CLASSES, merged)(images), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(module(images), ZeroShotCLIP(CLASSES, clip)(images), atol=1e-3)
    module.training_step((images, LABELS), 0).backward()
    assert all(parameter.grad.any() for parameter in module.trainable_by_name().values())


@pytest.mark.parametrize(("kind", "name"), [("swin", "SwinTransformer"), ("convnext", "ConvNeXt")])
def test_towers_without_such_blocks_are_refused(kind, name):
    for method in (FedLoRA, PFedMMA):
        with pytest.raises(UserError, match=name):
            method(CLASSES, image_clip(kind))


def test_it_starts_as_zero_shot_clip(clip, images):
    expected = ZeroShotCLIP(CLASSES, clip)(images)
    torch.testing.assert_close(FedLoRA(CLASSES, clip, rank=7)(images), expected, atol=1e-4, rtol=1e-5)


def test_clip_stays_as_it_is_even_where_a_call_fails(clip, images):
    module = make(clip)
    before = dict(clip.named_parameters())
    versions = {name: parameter._version for name, parameter in before.items()}
    with pytest.raises(RuntimeError):
        module(images[..., :16, :16])
    module(images)
    after = dict(clip.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert {name: parameter._version for name, parameter in after.items()} == versions
    assert torch.equal(ZeroShotCLIP(CLASSES, clip)(images), ZeroShotCLIP(CLASSES, load_clip("fedvlp-tiny"))(images))


def test_features_of_texts_follow_the_updates(clip, images):
    module = make(clip).eval()
    with torch.no_grad():
        first = module(images)
        assert torch.equal(module(images), first)
        module.text_updates.up.mul_(-1)
        assert not torch.allclose(module(images), first, atol=1e-2)
    torch.testing.assert_close(copy.deepcopy(module)(images), module(images))
