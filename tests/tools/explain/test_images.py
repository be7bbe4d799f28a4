"""Relevance maps against explicit forward passes, and the choice of images and features."""

import copy
import math

import open_clip
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from fedvlp import ADAPT, TRIP, FineTuning, ZeroShotCLIP
from fedvlp.clip import CLIP, PromptedImageEncoder, build_model
from fedvlp.data import DomainFolders
from fedvlp.tools.explain.images import (
    ZERO_SHOT,
    choose_classes,
    choose_images,
    choose_method,
    compute_views,
    differentiable_logits,
    read_run_samples,
    read_samples,
    relevance,
)
from fedvlp.utils.errors import UserError
from tests.helpers.images import CLASSES
from tests.helpers.made_up_image_towers import image_clip

NAMES = ["cat", "dog", "bird"]
VISION = {"image_size": 32, "patch_size": 8, "width": 48, "layers": 3, "head_width": 16}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 2}
TIMM = ["biomed", "eva02", "siglip", "convnext", "swin"]
TOWERS = {
    "vit": VISION,
    "scaled": {**VISION, "ls_init_value": 0.5},
    "resnet": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None, "head_width": 16},
}


@pytest.fixture(scope="module")
def random_clips():
    """Make small CLIPs with random weights, by the kind of their image tower."""
    tokenizer = open_clip.SimpleTokenizer(context_length=77)
    clips = {}
    for name, vision in TOWERS.items():
        config = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": TEXT}
        clips[name] = CLIP(build_model(copy.deepcopy(config), seed=1), tokenizer, config)
    clips |= {name: image_clip(name) for name in TIMM}
    return clips


def images_for(clip, count=2):
    return torch.randn(count, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(3))


def classifier(clip):
    """Make a function that computes logits with a random linear layer instead of texts."""
    weights = torch.randn(clip.embed_dim, 3, generator=torch.Generator().manual_seed(4))
    return lambda features: features @ weights


def explicit_maps(clip, image, label, prompt):
    """Compute both maps of an image with explicit attention; prompt tokens follow the patches."""
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
@pytest.mark.parametrize(("tower", "length"), [("vit", 0), ("scaled", 2)])
def test_maps_of_a_vit_match_explicit_attention(random_clips, tower, method, length):
    clip = random_clips[tower]
    images = images_for(clip)
    labels = torch.tensor([2, 0])
    prompt = torch.randn(length, clip.image_width) if length else None
    encoder = PromptedImageEncoder(clip)

    def logits(pixels):
        return classifier(clip)(encoder.encode(pixels, None if prompt is None else prompt[None]))

    found = relevance(clip, logits, images, labels, method)
    assert not any(layer._forward_hooks for layer in clip.modules())
    for image, label, values in zip(images, labels, found, strict=True):
        expected = explicit_maps(clip, image, int(label), prompt)[method]
        assert expected.max() > 0
        torch.testing.assert_close(values, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", ["biomed", "eva02"])
def test_attention_of_timms_vits_matches_their_explicit_attention(random_clips, kind):
    """timm can compute attention explicitly; the weights then pass through a dropout layer, which a hook can read."""
    clip = random_clips[kind]
    images = images_for(clip)
    labels = torch.tensor([2, 0])
    found = relevance(clip, lambda pixels: classifier(clip)(clip.encode_image(pixels)), images, labels, "attention")
    other = copy.deepcopy(clip)
    seen = []
    for block in other.model.visual.trunk.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, __, weights: seen.append(weights))
    logits = classifier(other)(other.encode_image(images.clone().requires_grad_()))
    slopes = torch.autograd.grad(logits.gather(1, labels[:, None]).sum(), seen)
    maps = [(weights * slope).relu()[:, :, 0, 1:].mean(1) for weights, slope in zip(seen, slopes, strict=True)]
    assert maps[0].max() > 0
    torch.testing.assert_close(found.flatten(1), torch.stack(maps).mean(0), rtol=1e-3, atol=1e-7)
    assert choose_method(clip) == "attention"


def test_grad_cam_of_pooled_patches_uses_the_last_attention_output(random_clips):
    clip = random_clips["siglip"]
    trunk = clip.model.visual.trunk
    images = images_for(clip)
    logits = lambda pixels: classifier(clip)(clip.encode_image(pixels))  # noqa: E731
    found = relevance(clip, logits, images, torch.tensor([1, 0]), choose_method(clip))
    block = trunk.blocks[-1]
    hidden = trunk.blocks[:-1](trunk.norm_pre(trunk._pos_embed(trunk.patch_embed(images))))
    hidden = (hidden + block.ls1(block.attn(block.norm1(hidden)))).detach().requires_grad_()
    tokens = trunk.norm(hidden + block.ls2(block.mlp(block.norm2(hidden))))
    scores = classifier(clip)(clip.model.visual.head(trunk.forward_head(tokens)))
    (scores[0, 1] + scores[1, 0]).backward()
    patches = slice(trunk.num_prefix_tokens, None)
    alpha = hidden.grad[:, patches].mean(1, keepdim=True)
    expected = (hidden.detach()[:, patches] * alpha).sum(-1).relu()
    assert expected.max() > 0
    torch.testing.assert_close(found.flatten(1), expected, rtol=1e-3, atol=1e-6)
    with pytest.raises(UserError, match="pools its patches"):
        relevance(clip, logits, images, torch.tensor([1, 0]), "attention")


@pytest.mark.parametrize("kind", ["resnet", "convnext"])
def test_maps_of_a_tower_with_stages_match_explicit_grad_cam(random_clips, kind):
    clip = random_clips[kind]
    images = images_for(clip)
    labels = torch.tensor([1, 1])
    found = relevance(clip, lambda pixels: classifier(clip)(clip.encode_image(pixels)), images, labels, "grad_cam")
    visual = clip.model.visual
    for image, values in zip(images, found, strict=True):
        if kind == "resnet":
            grid = visual.layer4(visual.layer3(visual.layer2(visual.layer1(visual.stem(image[None])))))
        else:
            grid = visual.trunk.forward_features(image[None])
        grid = grid.detach().requires_grad_()
        pooled = visual.attnpool(grid) if kind == "resnet" else visual.head(visual.trunk.forward_head(grid))
        classifier(clip)(pooled)[0, 1].backward()
        expected = torch.zeros(values.shape)
        for channel in range(grid.shape[1]):
            expected += grid.grad[0, channel].mean() * grid.detach()[0, channel]
        torch.testing.assert_close(values, expected.clamp(min=0), rtol=1e-3, atol=1e-5)
    assert choose_method(clip) == "grad_cam"
    with pytest.raises(UserError, match="no attention between patches"):
        relevance(clip, lambda pixels: clip.encode_image(pixels), images, labels, "attention")


def test_maps_use_a_methods_own_image_tower(random_clips):
    """The maps equal maps of a CLIP with the trained weights; zero-shot maps still use the original tower."""
    clip = random_clips["vit"]
    module = FineTuning(NAMES, clip).eval()
    with torch.no_grad():
        for parameter in module.visual.parameters():
            parameter.mul_(1.25)
    trained = copy.deepcopy(clip)
    trained.model.visual.load_state_dict(module.visual.state_dict())
    images = images_for(clip)
    labels = torch.tensor([2, 0])
    maps = compute_views(module, images, labels, "attention").maps
    fixed = relevance(clip, differentiable_logits(ZeroShotCLIP(NAMES, clip)), images, labels, "attention")
    torch.testing.assert_close(maps[ZERO_SHOT], fixed)
    logits = lambda pixels: module.logits(trained.encode_image(pixels))  # noqa: E731
    expected = relevance(trained, logits, images, labels, "attention")
    torch.testing.assert_close(maps["FineTuning"], expected, rtol=1e-3, atol=1e-7)
    assert not torch.allclose(expected, fixed, rtol=0.1)


def test_routing_weights_are_constants_of_the_gradient(clip):
    module = TRIP(NAMES, clip=clip, num_experts=2, prompt_length=2).eval()
    images = images_for(clip)
    labels = torch.tensor([0, 2])
    weights = module.precompute(images)["eval_weights"]
    texts = F.normalize(module.text(torch.einsum("be,eld->bld", weights, module.experts)), dim=-1).detach()

    def logits(pixels):
        return torch.einsum("bd,bcd->bc", F.normalize(clip.encode_image(pixels), dim=-1), texts) * clip.logit_scale

    found = relevance(clip, differentiable_logits(module), images, labels, "grad_cam")
    torch.testing.assert_close(found, relevance(clip, logits, images, labels, "grad_cam"), rtol=1e-3, atol=1e-6)


def test_unsupported_towers_and_features_are_rejected(clip, random_clips):
    with pytest.raises(RuntimeError, match="return `features`"):
        relevance(clip, lambda pixels: pixels.mean((2, 3)), images_for(clip), torch.tensor([0, 1]), "attention")
    swin = random_clips["swin"]
    with pytest.raises(UserError, match="SwinTransformer"):
        relevance(swin, swin.encode_image, images_for(swin), torch.tensor([1, 0]), choose_method(swin))


@pytest.mark.parametrize(
    ("kind", "options", "names"),
    [
        (ZeroShotCLIP, {}, ["ZeroShotCLIP"]),
        (TRIP, {"num_experts": 2}, ["zero-shot CLIP", "TRIP", "expert 1", "expert 2"]),
        (ADAPT, {"domains": ["oil"]}, ["zero-shot CLIP", "ADAPT", "prompt of oil"]),
    ],
)
def test_views_are_zero_shot_method_and_single_experts(clip, kind, options, names):
    module = kind(NAMES, clip=clip, **options).eval()
    images = images_for(clip)
    predicted = compute_views(module, images, None, "attention")
    assert list(predicted.maps) == names
    with torch.no_grad():
        probabilities = module(images).softmax(dim=-1)
    torch.testing.assert_close(predicted.probabilities[kind.__name__], probabilities)
    assert torch.equal(predicted.classes, probabilities.argmax(dim=-1))
    other = (predicted.classes + 1) % 3
    requested = compute_views(module, images, other, "attention")
    assert torch.equal(requested.classes, other)
    assert not torch.equal(requested.maps[names[0]], predicted.maps[names[0]])
    if kind is TRIP:  # a single expert equals a TRIP with equal experts
        module.experts.data[:] = module.experts.data[:1].clone()
        single = compute_views(module, images, other, "attention").maps
        torch.testing.assert_close(single["expert 1"], single["TRIP"], rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(single["expert 1"], requested.maps["expert 1"], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "domains"),
    [
        ({"held_out": "photo"}, {"photo"}),
        ({"test_fraction": 0.3}, {"ink", "paint", "photo"}),
    ],
)
def test_chosen_images_were_not_used_for_training(image_root, clip, options, domains):
    data = DomainFolders(str(image_root), cache_dir=None, **options)
    data.setup()
    data.bind(clip.preprocess)
    images = choose_images(data, 6)
    assert len(images) == 6
    assert {image.domain for image in images} == domains
    trained = set()
    for entry in data.split_table():
        if entry["role"] == "train":
            trained.update(entry["images"])
    samples = read_run_samples(images, CLASSES, clip)
    for index, name in enumerate(samples.names):
        assert name not in trained
        domain, class_name = samples.titles[index].split(": ")
        path = image_root / name if (image_root / name).exists() else image_root / domain / name
        assert CLASSES[samples.labels[index]] == class_name
        assert class_name in path.parts
        torch.testing.assert_close(samples.pixels[index], clip.preprocess(Image.open(path).convert("RGB")))
    everything = choose_images(data, 1000)
    assert len({(image.domain, image.name) for image in everything}) == len(everything) > 6


def test_image_files_have_titles_but_no_labels(image_root, clip):
    samples = read_samples([str(image_root / "ink" / "star")], clip)
    assert samples.titles == ["0.png", "1.png", "2.png", "3.png"]
    assert set(samples.labels.tolist()) == {-1}
    assert [page.names for page in samples.pages(3)] == [samples.names[:3], samples.names[3:]]
    assert choose_classes("predicted", samples, NAMES) is None
    assert choose_classes("dog", samples, NAMES).tolist() == [1, 1, 1, 1]
    with pytest.raises(UserError, match="are unknown"):
        choose_classes("true", samples, NAMES)
    with pytest.raises(UserError, match="cat, dog, bird"):
        choose_classes("dgo", samples, NAMES)
