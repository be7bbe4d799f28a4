"""Fine-tuning: loss and gradients of open_clip's own model, learning rates by layer, and a ResNet's statistics."""

import copy

import pytest
import torch
from torch import nn

from fedvlp import FineTuning, ZeroShotCLIP
from fedvlp.clip import CLIP, build_model
from tests.helpers.clips import make_tokenizer
from tests.helpers.made_up_clips import made_up_clip
from tests.helpers.made_up_image_towers import image_clip
from tests.helpers.slow import CLASSES

TEXTS = ["a photo of a red circle.", "a photo of a star.", "a photo of a big square."]
LABELS = torch.tensor([0, 2, 1, 1])
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
CONFIGS = {
    "vit": {"image_size": 32, "patch_size": 8, "width": 48, "layers": 3, "head_width": 16},
    "resnet": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None, "head_width": 16},
}
TEXT_TOWERS = ["siglip", "coca", "biomedclip", "mt5", "nllb"]
CASES = [("vit", {"head": "linear"}), ("vit", {"towers": "both"}), ("resnet", {})]
CASES += [(kind, {"towers": "both"}) for kind in ("custom text", *TEXT_TOWERS)]


def make_clip(kind, **more):
    config = {"embed_dim": 24, "vision_cfg": CONFIGS[kind], "text_cfg": TEXT, **more}
    clip = CLIP(build_model(config), make_tokenizer(context_length=77), config)
    torch.manual_seed(1)
    for module in clip.model.modules():  # like a trained model: initially, the last norm of each block is zero
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return clip


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    made = {kind: made_up_clip(kind, tmp_path_factory.mktemp("clip")) for kind in TEXT_TOWERS}
    made |= {"vit": make_clip("vit"), "resnet": make_clip("resnet"), "custom text": make_clip("vit", custom_text=True)}
    return made


def pixels(clip, count=4, seed=2):
    size = clip.image_size
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def reference_loss(model, head, tokenizer, images, labels):
    """Compute the cross-entropy with open_clip's own forward pass, image by image and class by class."""
    losses = []
    texts = model.encode_text(tokenizer(TEXTS))
    for image, label in zip(images, labels, strict=True):
        feature = model.encode_image(image[None])[0]
        feature = feature / feature.norm()
        if head is not None:
            scores = [head.weight[c] @ feature + head.bias[c] for c in range(3)]
        else:
            scores = [model.logit_scale.exp() * feature @ (text / text.norm()) for text in texts]
        losses.append(-torch.stack(scores).log_softmax(0)[label])
    return torch.stack(losses).mean()


def perturb(module):
    """Add noise to the trained parameters."""
    with torch.no_grad():
        for parameter in module.trainable_by_name().values():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    return module


def merge_weights(module):
    """Copy open_clip's model with the module's weights, all of them trainable."""
    model = copy.deepcopy(module.clip.model).requires_grad_(True)
    model.visual = copy.deepcopy(module.visual)
    if module.text is not None:
        trained = dict(module.text.language.named_parameters(), logit_scale=module.logit_scale)
        text = getattr(model, "text", model)
        with torch.no_grad():
            model.logit_scale.copy_(trained.pop("logit_scale"))
            for name, value in trained.items():
                text.get_parameter(name).copy_(value)
    return model.eval()


@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_it_starts_as_zero_shot_clip_and_matches_open_clips_gradients(clips, kind, options):
    module = FineTuning(CLASSES, clips[kind], **options).train()
    images = pixels(module.clip)
    expected = ZeroShotCLIP(CLASSES, module.clip)(images).softmax(-1)
    torch.testing.assert_close(module(images).softmax(-1), expected, rtol=0, atol=1e-5)
    perturb(module)
    loss = module.training_step((images, LABELS), 0)
    loss.backward()
    model = merge_weights(module)
    head = copy.deepcopy(module.head)
    expected = reference_loss(model, head, module.clip.tokenizer, images, LABELS)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    trained = {f"visual.{name}": value for name, value in model.visual.named_parameters()}
    if head is not None:
        trained |= {f"head.{name}": value for name, value in head.named_parameters()}
    if module.text is not None:
        text = dict(getattr(model, "text", model).named_parameters())
        trained |= {f"text.language.{name}": text[name] for name, _ in module.text.language.named_parameters()}
        trained["logit_scale"] = model.logit_scale
    assert module.trainable_by_name().keys() == trained.keys()
    for name, parameter in module.trainable_by_name().items():
        bound = 1e-5 * max(1.0, trained[name].grad.abs().max().item())
        expected = trained[name].grad.view_as(parameter)  # some scales have shape [1]
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=bound, msg=name)


TEXT_BLOCKS = {
    "coca": ("cls_emb", "transformer.resblocks.1.attn.out_proj.weight", "ln_final.bias"),
    "biomedclip": ("transformer.embeddings.LayerNorm", "transformer.encoder.layer.1.output", "proj"),
    "mt5": ("transformer.embed_tokens.weight", "transformer.block.1.layer.0.layer_norm.weight", "proj"),
    "nllb": ("transformer.embed_tokens.weight", "transformer.layers.1.fc1.weight", "transformer.layer_norm.bias"),
}
"""Prefixes of parameter names at the bottom, in the second block and at the top of text towers."""
LAYERS = {
    "resnet": {
        "visual.conv3.weight": 5,
        "visual.bn2.bias": 5,
        "visual.layer1.0.conv1.weight": 4,
        "visual.layer4.0.bn3.weight": 1,
        "visual.attnpool.positional_embedding": 0,
    },
    "timm biomed": {
        "visual.trunk.pos_embed": 3,
        "visual.trunk.blocks.0.attn.qkv.weight": 2,
        "visual.trunk.blocks.1.norm1.bias": 1,
        "visual.trunk.norm.weight": 1,
        "visual.head.proj.weight": 0,
    },
    "timm siglip": {
        "visual.trunk.patch_embed.proj.weight": 3,
        "visual.trunk.blocks.1.mlp.fc1.weight": 1,
        "visual.trunk.attn_pool.latent": 0,
    },
    "timm convnext": {
        "visual.trunk.stem.0.weight": 6,
        "visual.trunk.stages.0.blocks.0.gamma": 5,
        "visual.trunk.stages.3.blocks.0.gamma": 2,
        "visual.head.proj.weight": 0,
    },
}
for kind, starts in TEXT_BLOCKS.items():
    LAYERS[kind] = {f"text.language.{start}": steps for start, steps in zip(starts, (4, 2, 0), strict=True)}


@pytest.mark.parametrize("kind", LAYERS)
def test_learning_rates_decay_from_the_top(clips, kind):
    """They halve for each layer above, as counted by timm."""
    clip = clips[kind] if kind in clips else image_clip(kind.removeprefix("timm "))
    module = FineTuning(CLASSES, clip, layer_decay=0.5, towers="both" if kind in TEXT_BLOCKS else "image")
    trained = module.trainable_by_name()
    groups = {id(value): group for group in module.parameter_groups(trained) for value in group["params"]}
    assert groups.keys() == {id(value) for value in trained.values()}
    for start, steps in LAYERS[kind].items():
        name = next(name for name in trained if name.startswith(start))
        group = groups[id(trained[name])]
        assert (group["factor"], group["decays"]) == (0.5**steps, trained[name].ndim > 1), name


def test_a_resnets_statistics_are_frozen_and_not_uploaded(clips):
    module = FineTuning(CLASSES, clips["resnet"]).train()
    before = {name: value.clone() for name, value in module.state_dict().items() if "running" in name}
    module.training_step((pixels(module.clip), LABELS), 0)
    assert len(before) == 2 * (3 + 4 * 4)
    assert not {*before, "visual.bn1.num_batches_tracked"} & module.shared_state().keys()
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())


def test_cached_text_features_follow_the_weights(clips):
    module = FineTuning(CLASSES, clips["vit"], towers="both").eval()
    images = pixels(module.clip)
    other = {name: value * 1.5 for name, value in module.shared_state().items() if name.startswith("text.")}
    with torch.no_grad():
        first = module(images)
        assert torch.equal(module(images), first)
        module.load_state(other)
        changed = module(images)
    assert not torch.allclose(changed, first)
    torch.testing.assert_close(module(images), changed)  # recomputed with a gradient
