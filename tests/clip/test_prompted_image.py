"""The prompted image encoder against attention written out head by head, and against open_clip's own forward."""

import pytest
import torch

from fedvlp.clip import PromptedImageEncoder
from fedvlp.utils.errors import UserError


def slow_attention(block, hidden):
    """Compute a block's attention for one image, head by head; return output and scores before the softmax."""
    attention = block.attn
    projected = block.ln_1(hidden) @ attention.in_proj_weight.T + attention.in_proj_bias
    queries, keys, values = projected.chunk(3, dim=-1)
    size = hidden.shape[-1] // attention.num_heads
    outputs = []
    scores = []
    for head in range(attention.num_heads):
        part = slice(head * size, (head + 1) * size)
        score = queries[:, part] @ keys[:, part].T / size**0.5
        scores.append(score)
        outputs.append(score.softmax(-1) @ values[:, part])
    return attention.out_proj(torch.cat(outputs, dim=-1)), torch.stack(scores).mean(0)


def slow_encode(clip, image, prompts):
    """Compute one image's features, prompt token features and scores by their definition."""
    visual = clip.model.visual
    length = prompts.shape[1]
    patches = visual.conv1(image[None])[0].flatten(1).T
    tokens = torch.cat([visual.class_embedding[None], patches]) + visual.positional_embedding
    hidden = visual.ln_pre(torch.cat([tokens, prompts[0]]))
    for index, block in enumerate(visual.transformer.resblocks):
        if 0 < index < len(prompts):
            hidden = torch.cat([hidden[:-length], prompts[index]])
        attended, scores = slow_attention(block, hidden)
        hidden = hidden + attended
        hidden = hidden + block.mlp(block.ln_2(hidden))
    own = hidden[:-length]
    if visual.attn_pool is not None:
        alone = [visual.attn_pool(tokens[None])[0, 0] for tokens in (own, *hidden[-length:, None])]
        joint = visual.ln_post(torch.stack(alone)) @ visual.proj
        return joint[0], joint[1:], pool_scores(visual.attn_pool, hidden[-length:])
    joint = visual.ln_post(hidden) @ visual.proj
    if visual.pool_type == "avg":
        pooled = (
            visual.ln_post(own[1:].mean(0)) @ visual.proj if visual.final_ln_after_pool else joint[1:-length].mean(0)
        )
        return pooled, joint[-length:], scores[1:-length, -length:].mean(0)
    return joint[0], joint[-length:], scores[0, -length:]


def pool_scores(pool, tokens):
    """Compute the scores of tokens for the first query of open_clip's attention pool, head by head."""
    attention = pool.attn
    query_map, key_map = (
        attention.in_proj_weight.chunk(3)[:2]
        if attention.in_proj_weight is not None
        else (attention.q_proj_weight, attention.k_proj_weight)
    )
    query_bias, key_bias, _ = attention.in_proj_bias.chunk(3)
    query = query_map @ pool.ln_q(pool.query)[0] + query_bias
    keys = pool.ln_k(tokens) @ key_map.T + key_bias
    size = len(query) // attention.num_heads
    parts = zip(query.split(size), keys.split(size, dim=1), strict=True)
    return torch.stack([key @ part / size**0.5 for part, key in parts]).mean(0)


def images_of(clip, number=3):
    return torch.randn(number, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(0))


def assert_equals_slow(clip, prompts, number):
    encoder = PromptedImageEncoder(clip)
    images = images_of(clip, number)
    quick = prompts.clone().requires_grad_()
    slow = prompts.clone().requires_grad_()
    found = encoder(images, quick)
    parts = zip(*(slow_encode(clip, image, slow) for image in images), strict=True)
    losses = []
    for one, other in zip((found.features, found.prompt_features, found.scores), map(torch.stack, parts), strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() < 1e-5 * max(1.0, other.detach().abs().max())
        signal = torch.randn(one.shape, generator=torch.Generator().manual_seed(1))
        losses.append(((one * signal).sum(), (other * signal).sum()))
    for loss in zip(*losses, strict=True):
        sum(loss).backward()
    assert (quick.grad - slow.grad).abs().max() < 1e-4 * slow.grad.abs().max()
    assert torch.allclose(encoder.encode(images, prompts), found.features, atol=1e-5)


@pytest.mark.parametrize("kind", ["vit", "quick"])
@pytest.mark.parametrize("depth", [1, 2])
def test_equals_attention_written_out(make_clip, configs, kind, depth):
    torch.manual_seed(0)
    assert_equals_slow(make_clip(configs[kind]), torch.randn(depth, 3, 48), 3)


def test_no_prompts_are_clips_own_features(clip):
    encoder = PromptedImageEncoder(clip)
    images = images_of(clip)
    expected = clip.encode_image(images)
    assert torch.equal(encoder.encode(images), expected)
    empty = encoder(images, torch.empty(1, 0, 48))
    torch.testing.assert_close(empty.features, expected, atol=1e-6, rtol=1e-5)
    assert empty.prompt_features.shape == (3, 0, 24)
    assert empty.scores.shape == (3, 0)


def test_images_with_prompts_of_their_own(clip):
    """Each image is encoded with prompts from its own patches only."""
    encoder = PromptedImageEncoder(clip)
    images = images_of(clip)
    features = encoder.encode_conditional(images, lambda patches: 2 * patches[:, :2])
    for number, image in enumerate(images):
        patches = clip.image.embed(image[None])[0, 1:]
        alone = encoder.encode(image[None], 2 * patches[None, :2])[0]
        torch.testing.assert_close(features[number], alone, atol=1e-5, rtol=1e-5)


def test_too_many_blocks_are_refused(clip):
    encoder = PromptedImageEncoder(clip)
    with pytest.raises(UserError, match="at most 2"):
        encoder.encode(images_of(clip), torch.zeros(3, 1, 48))


POOLS = {
    "average": {"pool_type": "avg"},
    "average_after": {"pool_type": "avg", "no_ln_pre": True, "final_ln_after_pool": True},
    "attention": {"attentional_pool": True, "attn_pooler_queries": 4, "attn_pooler_heads": 2},
    "attention_of_same_width": {
        "attentional_pool": True,
        "attn_pooler_queries": 1,
        "attn_pooler_heads": 3,
        "width": 24,
    },
}


@pytest.mark.parametrize("pool", POOLS)
def test_other_pools_equal_attention_written_out(make_clip, configs, pool):
    torch.manual_seed(0)
    clip = make_clip({**configs["vit"], "vision_cfg": {**configs["vit"]["vision_cfg"], "head_width": 8, **POOLS[pool]}})
    images = images_of(clip)
    expected = clip.model.encode_image(images)
    torch.testing.assert_close(clip.encode_image(images), expected)
    assert_equals_slow(clip, torch.randn(2, 3, clip.image_width), 3)


@pytest.mark.parametrize("options", [{"qk_norm": True}, {"attentional_pool": "parallel"}])
def test_attention_of_another_kind_is_refused(make_clip, configs, options):
    vision = {**configs["vit"]["vision_cfg"], "attn_pooler_heads": 2, **options}
    with pytest.raises(UserError, match="another kind"):
        PromptedImageEncoder(make_clip({**configs["vit"], "vision_cfg": vision}))


def test_resnets_are_refused(make_clip, configs):
    with pytest.raises(UserError, match="ModifiedResNet"):
        PromptedImageEncoder(make_clip(configs["resnet"]))
