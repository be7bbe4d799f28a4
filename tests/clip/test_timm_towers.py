"""timm's ViTs as image towers against timm's own forward passes, and with prompts against written-out attention."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedvlp.clip import PromptedImageEncoder
from fedvlp.clip.image_towers import ConvNeXtTower, ImageTower, TimmTower
from fedvlp.utils.errors import UserError
from tests.helpers.made_up_image_towers import VITS, image_clip
from tests.helpers.shapes import unchecked


@pytest.fixture(scope="module", params=VITS)
def timm_clip(request):
    """A CLIP with each kind of ViT, in double precision."""
    return image_clip(request.param).double()


def images_of(clip, count=2):
    return torch.randn(count, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(0)).double()


def prompts_of(clip, depth=2):
    return torch.randn(depth, 3, clip.image_width, generator=torch.Generator().manual_seed(1)).double()


def rotated(tokens, rope, prefix):
    """Rotate pairs of values of each patch by their angle; tokens before and after the patches stay unchanged."""
    sines, cosines = rope.chunk(2, dim=-1)
    turned = tokens.clone()
    for place in range(len(sines)):
        even, odd = tokens[:, prefix + place, ::2], tokens[:, prefix + place, 1::2]
        sine, cosine = sines[place, ::2], cosines[place, ::2]
        turned[:, prefix + place] = torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], -1).flatten(1)
    return turned


def slow_attention(attention, inputs, ropes, prefix):
    """Compute attention head by head; return its output and the scores of each head [heads, B, N, N]."""
    if attention.qkv is None:
        projections = [attention.q_proj(inputs), attention.k_proj(inputs), attention.v_proj(inputs)]
    else:
        bias = attention.qkv.bias
        if bias is None:
            bias = torch.cat([attention.q_bias, torch.zeros_like(attention.q_bias), attention.v_bias])
        projections = F.linear(inputs, attention.qkv.weight, bias).chunk(3, dim=-1)
    reads, scores = [], []
    size = inputs.shape[-1] // attention.num_heads
    for head, parts in enumerate(zip(*(tokens.split(size, dim=-1) for tokens in projections), strict=True)):
        query, key = attention.q_norm(parts[0]), attention.k_norm(parts[1])
        if ropes is not None:
            rope = ropes[head] if ropes.ndim == 3 else ropes
            query, key = rotated(query, rope, prefix), rotated(key, rope, prefix)
        scores.append(query @ key.mT / size**0.5)
        reads.append(scores[-1].softmax(-1) @ parts[2])
    return attention.proj(attention.norm(torch.cat(reads, dim=-1))), torch.stack(scores)


def slow_block(block, hidden, ropes, prefix):
    if type(block).__name__ == "EvaBlockPostNorm":
        attended, scores = slow_attention(block.attn, hidden, ropes, prefix)
        hidden = hidden + block.norm1(attended)
        return hidden + block.norm2(block.mlp(hidden)), scores
    attended, scores = slow_attention(block.attn, block.norm1(hidden), ropes, prefix)
    first, second = (getattr(block, f"ls{i}", None) or nn.Identity() for i in (1, 2))
    hidden = hidden + first(attended)
    return hidden + second(block.mlp(block.norm2(hidden))), scores


def slow_pool(visual, tokens):
    trunk = visual.trunk
    tokens = trunk.norm(tokens)
    if trunk.attn_pool is not None:
        pooled = trunk.attn_pool(tokens)
    else:
        pooled = tokens[:, 0] if trunk.global_pool == "token" else tokens[:, trunk.num_prefix_tokens :].mean(1)
    return visual.head(trunk.head(trunk.fc_norm(pooled)))


def slow_scores(trunk, scores, outputs, count):
    """Compute the prompt tokens' scores for the query of the pool, the class token or the patches' mean."""
    if trunk.attn_pool is None:
        of_prompt = scores.mean(0)[:, :count, count:]
        return of_prompt[:, 0] if trunk.global_pool == "token" else of_prompt[:, trunk.num_prefix_tokens :].mean(1)
    pool = trunk.attn_pool
    query = pool.q(pool.latent)[0, 0]
    keys = pool.kv(trunk.norm(outputs)).chunk(2, dim=-1)[0]
    size = len(query) // pool.num_heads
    heads = zip(query.split(size), keys.split(size, dim=-1), strict=True)
    return torch.stack([key @ part / size**0.5 for part, key in heads]).mean(0)


def slow_encode(clip, images, prompts):
    """Compute image features, prompt token features and scores, with prompts in some blocks."""
    visual = clip.model.visual
    trunk = visual.trunk
    tokens = trunk._pos_embed(trunk.patch_embed(images))
    tokens, ropes = tokens if isinstance(tokens, tuple) else (tokens, None)
    count = tokens.shape[1]
    hidden = trunk.norm_pre(torch.cat([tokens, prompts[0].expand(len(images), -1, -1)], dim=1))
    for index, block in enumerate(trunk.blocks):
        if 0 < index < len(prompts):
            hidden = torch.cat([hidden[:, :count], prompts[index].expand(len(images), -1, -1)], dim=1)
        of_block = ropes[index] if ropes is not None and ropes.ndim == 4 else ropes
        hidden, scores = slow_block(block, hidden, of_block, trunk.num_prefix_tokens)
    outputs = hidden[:, count:]
    # A prompt token's features are computed as if it were the image's only token.
    alone = outputs.flatten(0, 1)[:, None].expand(-1, 1 + trunk.num_prefix_tokens, -1)
    prompt_features = slow_pool(visual, alone).unflatten(0, outputs.shape[:2])
    return slow_pool(visual, hidden[:, :count]), prompt_features, slow_scores(trunk, scores, outputs, count)


def test_without_prompts_it_is_timms_own(timm_clip):
    images = images_of(timm_clip)
    trunk = timm_clip.model.visual.trunk
    features, tokens = timm_clip.encode_image_tokens(images)
    assert type(timm_clip.image) is TimmTower
    assert tokens.shape == (2, timm_clip.num_image_tokens, timm_clip.image_width)
    assert tokens.shape[1] == 16 + timm_clip.image.num_prefix
    torch.testing.assert_close(features, timm_clip.model.encode_image(images))
    torch.testing.assert_close(trunk.norm(tokens), trunk.forward_features(images))
    torch.testing.assert_close(PromptedImageEncoder(timm_clip).encode(images), features)


def test_a_branch_gets_the_attention_inputs(timm_clip):
    branches = {0: torch.sin, 1: torch.cos}
    tower = timm_clip.image.add_branches(branches)
    hidden = tower.embed(images_of(timm_clip))
    for index, block in enumerate(timm_clip.model.visual.trunk.blocks):
        read = hidden if type(block).__name__ == "EvaBlockPostNorm" else block.norm1(hidden)
        hidden = timm_clip.image.blocks.run(index, hidden) + branches[index](read)
    torch.testing.assert_close(tower.encode(images_of(timm_clip))[1], hidden)


@pytest.mark.parametrize("depth", [1, 2])
def test_prompts_equal_attention_written_out(timm_clip, depth):
    images = images_of(timm_clip)
    prompts = prompts_of(timm_clip, depth).requires_grad_()
    encoder = PromptedImageEncoder(timm_clip)
    found = encoder(images, prompts)
    results = (found.features, found.prompt_features, found.scores), slow_encode(timm_clip, images, prompts)
    for one, other in zip(*results, strict=True):
        assert one.std() > 1e-3
        torch.testing.assert_close(one, other)
    gradients = []
    for values in results:
        generator = torch.Generator().manual_seed(2)
        loss = sum((value * torch.randn(value.shape, generator=generator).double()).sum() for value in values)
        gradients.append(torch.autograd.grad(loss, prompts)[0])
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(encoder.encode(images, prompts), found.features)
    assert not torch.allclose(found.features, timm_clip.encode_image(images), rtol=0, atol=1e-4)


def test_images_with_prompts_of_their_own(timm_clip):
    """Prompts depend only on an image's patches, not on class token and registers."""
    images = images_of(timm_clip)
    made = []
    features = PromptedImageEncoder(timm_clip).encode_conditional(
        images, lambda patches: made.append(patches) or patches[:, :2]
    )
    assert made[0].shape[1] == 16
    for image, patches, feature in zip(images, made[0], features, strict=True):
        expected = slow_encode(timm_clip, image[None], patches[None, :2])[0][0]
        torch.testing.assert_close(feature, expected)


def test_in_bfloat16_weights_stay_and_autocast_computes():
    clip = image_clip("eva02")
    images = images_of(clip).float()
    prompts = prompts_of(clip).float().requires_grad_()
    encoder = PromptedImageEncoder(clip)
    expected = encoder(images, prompts)
    clip.cast_towers(torch.bfloat16)
    assert {parameter.dtype for parameter in clip.model.visual.parameters()} == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        found = encoder(images, prompts)
    for one, other in ((found.features, expected.features), (found.scores, expected.scores)):
        assert 0 < (one - other).norm() < 0.1 * other.norm()
    found.features.float().sum().backward()
    assert prompts.grad.isfinite().all()


@pytest.mark.parametrize(
    ("kind", "tower", "name"), [("convnext", ConvNeXtTower, "ConvNeXt"), ("swin", ImageTower, "SwinTransformer")]
)
def test_others_have_no_tokens(kind, tower, name):
    clip = image_clip(kind)
    images = images_of(clip).float()
    assert type(clip.image) is tower
    torch.testing.assert_close(clip.encode_image(images), clip.model.encode_image(images))
    refused = (clip.image.require_prompts, clip.image.require_tokens, lambda: clip.image.project(torch.zeros(1, 4)))
    for ask in refused:
        with pytest.raises(UserError, match=rf"is {name}\b.*ViT-B-16"):
            ask()


@pytest.mark.every_config
def test_an_exported_graph_takes_any_number_of_images():
    clip = image_clip("biomed").double()
    prompts = prompts_of(clip)

    class Scores(nn.Module):
        def forward(self, images):
            return PromptedImageEncoder(clip)(images, prompts).scores

    with unchecked():  # the tracer cannot follow the checks of shapes
        shapes = ({0: torch.export.Dim("images")},)
        graph = torch.export.export(Scores(), (images_of(clip, 3),), dynamic_shapes=shapes, strict=False).module()
    more = images_of(clip, 5)
    torch.testing.assert_close(graph(more), Scores()(more), atol=1e-10, rtol=0)
