"""The frozen CLIP: features, tokens, fingerprint."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fedvlp.clip import build_model, load_clip


def test_features_are_open_clips(clip):
    images = torch.randn(2, 3, 32, 32)
    ids = clip.tokenizer(["a dog", "two cats and a mouse"])
    torch.testing.assert_close(clip.encode_image(images), clip.model.encode_image(images))
    assert torch.equal(clip.encode_text(ids), clip.model.encode_text(ids))


def test_sizes(clip, make_clip, configs):
    assert (clip.image_size, clip.image_width, clip.text_width, clip.embed_dim) == (32, 48, 32, 24)
    assert (clip.num_image_tokens, clip.context_length) == (17, 77)
    assert clip.logit_scale == pytest.approx(1 / 0.07)
    resnet = make_clip(configs["resnet"])
    assert (resnet.image_size, resnet.image_width, resnet.num_image_tokens) == (64, 8 * 32, 5)


def test_vit_tokens_are_the_last_blocks_output_before_the_final_norm(clip):
    images = torch.randn(3, 3, 32, 32)
    features, tokens = clip.encode_image_tokens(images)
    assert tokens.shape == (3, 17, 48)
    torch.testing.assert_close(features, clip.encode_image(images))
    visual = clip.model.visual
    torch.testing.assert_close(visual.ln_post(tokens[:, 0]) @ visual.proj, features)
    theirs = visual.forward_intermediates(images, indices=1, output_fmt="NLC")["image_intermediates"][0]
    torch.testing.assert_close(tokens[:, 1:], theirs)


def test_resnet_tokens_are_the_attention_pools_input(make_clip, configs):
    clip = make_clip(configs["resnet"])
    images = torch.randn(2, 3, 64, 64)
    features, tokens = clip.encode_image_tokens(images)
    assert tokens.shape == (2, 5, 256)
    torch.testing.assert_close(features, clip.encode_image(images))
    torch.testing.assert_close(tokens[:, 0], tokens[:, 1:].mean(dim=1))
    pixels = tokens[:, 1:].transpose(1, 2).reshape(2, 256, 2, 2)
    torch.testing.assert_close(clip.model.visual.attnpool(pixels), features)


def test_is_frozen_and_stays_in_evaluation_mode(make_clip, configs):
    clip = make_clip(configs["resnet"])
    holder = nn.ModuleList([clip]).train()
    assert not any(module.training for module in clip.modules())
    assert not any(parameter.requires_grad for parameter in holder.parameters())
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(clip.encode_image(images), clip.encode_image(images))


def test_is_absent_from_state_dicts_and_does_not_miss_itself(clip):
    assert clip.state_dict() == {}
    assert clip.load_state_dict({}) == ([], [])
    holder = nn.ModuleDict({"one": nn.Linear(1, 1), "clip": clip, "two": nn.Linear(1, 1)})
    assert sorted(holder.state_dict()) == ["one.bias", "one.weight", "two.bias", "two.weight"]
    holder.load_state_dict(holder.state_dict())
    assert deepcopy(holder).load_state_dict({}, strict=False).missing_keys == [
        "one.weight",
        "one.bias",
        "two.weight",
        "two.bias",
    ]


def test_weights_are_listed_once_as_those_of_the_model(clip):
    assert [name for name, _ in clip.named_children()] == ["model"]
    names = [name for name, _ in clip.named_parameters(remove_duplicate=False)]
    assert names == [f"model.{name}" for name, _ in clip.model.named_parameters(remove_duplicate=False)]


def test_fingerprint_of_the_bundled_clip():
    # `torch.randn`, which makes the embeddings of words that were never trained, rounds otherwise without AVX2.
    has_avx2 = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    assert load_clip("fedvlp-tiny").fingerprint() == ("49d06a950cacb3d7" if has_avx2 else "61ea846ef4365d0d")


def test_fingerprint_tells_weights_config_and_transform_apart(make_clip, configs):
    first = make_clip(configs["vit"]).fingerprint()
    assert first == make_clip(configs["vit"]).fingerprint()
    assert len(first) == 16
    other = make_clip(configs["vit"])
    with torch.no_grad():
        other.model.visual.proj[0, 0] += 1e-3
    quick = make_clip(configs["quick"])
    darker = make_clip(configs["vit"], preprocess={"mean": (0, 0, 0)})
    assert len({first, *(clip.fingerprint() for clip in (other, quick, darker))}) == 4


def test_building_does_not_change_the_global_generator(configs):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = build_model(configs["vit"], seed=1)
    second = build_model(configs["vit"], seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.visual.proj, second.visual.proj)
    assert not torch.equal(first.visual.proj, build_model(configs["vit"], seed=2).visual.proj)


def test_transforms(clip):
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    tensor = clip.preprocess(picture)
    assert tensor.shape == (3, 32, 32)
    gray = clip.preprocess(picture.convert("L"))
    assert gray.shape == (3, 32, 32)
    mean = torch.tensor(clip.preprocess_options.mean)[:, None, None]
    deviation = torch.tensor(clip.preprocess_options.std)[:, None, None]
    expected = picture.resize((48, 32), Image.Resampling.BICUBIC).crop((8, 0, 40, 32))
    expected = torch.from_numpy(np.asarray(expected) / 255).permute(2, 0, 1).float()
    torch.testing.assert_close(tensor * deviation + mean, expected, atol=1e-6, rtol=0)
    torch.manual_seed(0)
    crops = {clip.train_preprocess(picture).sum().item() for _ in range(4)}
    assert len(crops) == 4
    assert clip.train_preprocess(picture).shape == (3, 32, 32)


def test_a_move_takes_everything_along(make_clip, configs):
    clip = make_clip(configs["vit"]).to(torch.float64)
    assert clip.encode_image(torch.randn(1, 3, 32, 32, dtype=torch.float64)).dtype == torch.float64
