"""Relevance of patches against forward passes written out by hand, head by head and patch by patch."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from fedvlp.clip import PromptedImageEncoder
from fedvlp.methods import ADAPT, PLAN, TRIP, FineTuning, PromptFL, ZeroShotCLIP
from fedvlp.tools.explain.overlays import FIXED, views
from fedvlp.tools.explain.relevance import differentiable_logits, relevance, suited_method
from fedvlp.utils.errors import UserError

NAMES = ["cat", "dog", "bird"]


def images_for(clip, count=2):
    return torch.randn(count, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(3))


def classifier(clip):
    """Logits by an arbitrary linear layer, in place of texts."""
    weights = torch.randn(clip.embed_dim, 3, generator=torch.Generator().manual_seed(4))
    return lambda features: features @ weights


def by_hand(clip, image, label, prompt):
    """Returns both maps of one image, with attention spelled out; a prompt stands behind the patches."""
    visual = clip.model.visual
    hidden = visual._embeds(image[None])[0]  # [N, W]
    patches = len(hidden) - 1
    if prompt is not None:
        hidden = torch.cat([hidden, visual.ln_pre(prompt)])
    hidden = hidden.detach().requires_grad_()
    attentions = []
    for block in visual.transformer.resblocks:
        attention = block.attn
        tokens = block.ln_1(hidden)
        projected = tokens @ attention.in_proj_weight.T + attention.in_proj_bias
        queries, keys = projected[:, : 2 * attention.embed_dim].split(attention.embed_dim, 1)
        values = projected[:, 2 * attention.embed_dim :]
        width = attention.head_dim
        read = []
        for head in range(attention.num_heads):
            part = slice(head * width, (head + 1) * width)
            weights = (queries[:, part] @ keys[:, part].T / math.sqrt(width)).softmax(dim=1)
            weights.retain_grad()
            attentions.append(weights)
            read.append(weights @ values[:, part])
        mixed = torch.cat(read, dim=1) @ attention.out_proj.weight.T + attention.out_proj.bias
        hidden = hidden + block.ls_1(mixed)
        hidden = hidden + block.ls_2(block.mlp(block.ln_2(hidden)))
    tokens.retain_grad()
    classifier(clip)(visual.ln_post(hidden[0]) @ visual.proj)[label].backward()
    side = math.isqrt(patches)
    grad_cam, attention = torch.zeros(2, side, side)
    alpha = tokens.grad[1 : 1 + patches].mean(dim=0)
    for patch in range(patches):
        row, column = divmod(patch, side)
        grad_cam[row, column] = max(0.0, float(alpha @ tokens[1 + patch].detach()))
        each = [max(0.0, float(weights[0, 1 + patch].detach() * weights.grad[0, 1 + patch])) for weights in attentions]
        attention[row, column] = sum(each) / len(each)
    return {"grad_cam": grad_cam.detach(), "attention": attention}


@pytest.mark.parametrize("method", ["grad_cam", "attention"])
@pytest.mark.parametrize("tower", ["vit", "scaled"])
@pytest.mark.parametrize("length", [0, 2])
def test_of_a_vit_is_that_by_hand(random_clips, tower, method, length):
    clip = random_clips[tower]
    images = images_for(clip)
    labels = torch.tensor([2, 0])
    prompt = torch.randn(length, clip.image_width) if length else None
    encoder = PromptedImageEncoder(clip)

    def logits(pixels):
        return classifier(clip)(encoder.encode(pixels, None if prompt is None else prompt[None]))

    found = relevance(clip, logits, images, labels, method)
    for image, label, values in zip(images, labels, found, strict=True):
        wanted = by_hand(clip, image, int(label), prompt)[method]
        assert wanted.max() > 0
        torch.testing.assert_close(values, wanted, rtol=1e-3, atol=1e-6)


def test_of_a_resnet_is_that_by_hand(random_clips):
    clip = random_clips["resnet"]
    images = images_for(clip)
    labels = torch.tensor([1, 1])
    found = relevance(clip, lambda pixels: classifier(clip)(clip.encode_image(pixels)), images, labels, "grad_cam")
    visual = clip.model.visual
    for image, values in zip(images, found, strict=True):
        grid = visual.layer4(visual.layer3(visual.layer2(visual.layer1(visual.stem(image[None])))))
        grid = grid.detach().requires_grad_()
        classifier(clip)(visual.attnpool(grid))[0, 1].backward()
        wanted = torch.zeros(values.shape)
        for channel in range(grid.shape[1]):
            wanted += grid.grad[0, channel].mean() * grid.detach()[0, channel]
        torch.testing.assert_close(values, wanted.clamp(min=0), rtol=1e-3, atol=1e-6)
    assert suited_method(clip) == "grad_cam"
    with pytest.raises(UserError, match="no attention between patches"):
        relevance(clip, lambda pixels: clip.encode_image(pixels), images, labels, "attention")


@pytest.mark.parametrize("method", ["grad_cam", "attention"])
def test_a_tower_of_a_methods_own_is_looked_into(random_clips, method):
    """As into that of a CLIP that has its weights; zero-shot CLIP beside it keeps its own."""
    clip = random_clips["vit"]
    module = FineTuning(NAMES, clip).eval()
    with torch.no_grad():
        for parameter in module.visual.parameters():
            parameter.mul_(1.25)
    trained = copy.deepcopy(clip)
    trained.model.visual.load_state_dict(module.visual.state_dict())
    images = images_for(clip)
    labels = torch.tensor([2, 0])
    found, _ = views(module, images, labels, method)
    texts = differentiable_logits(ZeroShotCLIP(NAMES, clip))
    fixed = relevance(clip, texts, images, labels, method)
    torch.testing.assert_close(found[FIXED].maps, fixed)
    logits = lambda pixels: module.logits(trained.encode_image(pixels))  # noqa: E731
    expected = relevance(trained, logits, images, labels, method)
    torch.testing.assert_close(found["FineTuning"].maps, expected, rtol=1e-3, atol=1e-7)
    assert not torch.allclose(expected, fixed, rtol=0.1)


@pytest.mark.parametrize("method", ["grad_cam", "attention"])
@pytest.mark.parametrize("kind", [ZeroShotCLIP, PromptFL, TRIP, PLAN, ADAPT])
def test_of_methods_leaves_everything_as_it_was(clip, kind, method):
    more = {PLAN: {"num_clients": 2, "prompt_length": 2}, ADAPT: {"domains": ["ink", "oil"], "prompt_length": 2}}
    torch.manual_seed(0)  # new prompts are random, and under some of them nothing speaks for a class
    module = kind(NAMES, clip=clip, **more.get(kind, {})).eval()
    images = images_for(clip)
    with torch.no_grad():
        before = module(images)
    torch.testing.assert_close(differentiable_logits(module)(images), before)
    found = relevance(clip, differentiable_logits(module), images, torch.tensor([0, 1]), method)
    assert found.shape == (2, 8, 8)
    assert (found >= 0).all()
    assert (found.flatten(1).amax(dim=1) > 0).all()
    alone = relevance(clip, differentiable_logits(module), images[1:], torch.tensor([1]), method)
    torch.testing.assert_close(alone[0], found[1], rtol=1e-3, atol=1e-7)
    assert not any(layer._forward_hooks for layer in clip.modules())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_the_mixture_is_a_constant(clip):
    module = TRIP(NAMES, clip=clip, num_experts=2, prompt_length=2).eval()
    images = images_for(clip)
    labels = torch.tensor([0, 2])
    weights = module.precompute(images)["eval_weights"]
    texts = F.normalize(module.text(torch.einsum("be,eld->bld", weights, module.experts)), dim=-1).detach()

    def logits(pixels):
        return torch.einsum("bd,bcd->bc", F.normalize(clip.encode_image(pixels), dim=-1), texts) * clip.logit_scale

    found = relevance(clip, differentiable_logits(module), images, labels, "grad_cam")
    torch.testing.assert_close(found, relevance(clip, logits, images, labels, "grad_cam"), rtol=1e-3, atol=1e-6)


def test_logits_that_come_from_elsewhere_are_refused(clip):
    with pytest.raises(RuntimeError, match="Keep `features`"):
        relevance(clip, lambda pixels: pixels.mean((2, 3)), images_for(clip), torch.tensor([0, 1]), "attention")
