"""Architectures, weights and transforms from names, tags and files."""

import json
from copy import deepcopy

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from torch.overrides import TorchFunctionMode

from fedvlp.clip import CLIPSpec, build_model, hugging_face, load_clip, loading
from fedvlp.utils.errors import UserError

NAME = "small"


@pytest.mark.parametrize(("tag", "quick"), [("openai", True), ("auto", True), ("laion", False)])
def test_a_tag_brings_its_activation_and_transform(small, monkeypatch, tmp_path, tag, quick, save, uses_quick_gelu):
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED[NAME]["laion"], "mean", (0.0, 0.0, 0.0))
    monkeypatch.setattr(open_clip, "download_pretrained", lambda _: save(small, tmp_path / "w.safetensors"))
    clip = load_clip(CLIPSpec(NAME, tag))
    assert uses_quick_gelu(clip) is quick
    assert torch.equal(clip.model.visual.proj, small.visual.proj)
    assert clip.preprocess_options.mean == ((0.0, 0.0, 0.0) if tag == "laion" else open_clip.OPENAI_DATASET_MEAN)
    assert clip.preprocess_options.size == 32


def test_a_tag_without_activation_has_the_architectures(small, configs, monkeypatch, tmp_path, save, uses_quick_gelu):
    """The architecture determines the activation, as for LAION's RoBERTa."""
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, NAME, configs["quick"])
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, NAME, {"laion": {"url": "https://example.org/laion.pt"}})
    monkeypatch.setattr(open_clip, "download_pretrained", lambda _: save(small, tmp_path / "w.safetensors"))
    assert uses_quick_gelu(load_clip(CLIPSpec(NAME, "laion")))


def test_unknown_names_suggest_near_ones():
    with pytest.raises(UserError, match="ViT-B-16"):
        load_clip(CLIPSpec("ViT-B16", "random"))
    with pytest.raises(UserError, match="fedvlp-tiny"):
        load_clip("fedvlp-tony")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("openai/clip-vit-base-patch16", "ViT-B-16"),
        ("ViT-L/14@336px", "ViT-L-14-336"),
        ("vitb16", "ViT-B-16"),
        ("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", "ViT-H-14"),
        ("google/siglip-base-patch16-256-multilingual", "ViT-B-16-SigLIP-i18n-256"),
    ],
)
def test_names_in_other_spellings_suggest_open_clips(name, meant):
    hub = name if "/" in name else "organisation/model"
    with pytest.raises(
        UserError, match=rf"no CLIP named '{name}'. Nearest: {meant}, .*or hf-hub:{hub} for a repository that has"
    ):
        load_clip(CLIPSpec(name, "random"))


def test_unknown_tags_list_the_known_ones(small):
    with pytest.raises(UserError, match="openai, laion, random"):
        load_clip(CLIPSpec(NAME, "laion3b"))
    with pytest.raises(UserError, match="no weights by OpenAI"):
        load_clip("ViT-H-14")


def test_without_network_the_file_to_download_is_named(small, offline):
    with pytest.raises(UserError) as raised:
        load_clip(NAME)
    message = str(raised.value)
    assert "https://huggingface.co/some/small/resolve/main/open_clip_model.safetensors" in message
    assert "--model.clip.name small --model.clip.pretrained /path/to/the/file --model.clip.tag openai." in message
    with pytest.raises(UserError, match=r"https://huggingface.co/org/model, .*--model.clip.name local-dir:"):
        load_clip("hf-hub:org/model")


def test_a_hub_model_comes_with_its_config(small, configs, monkeypatch, tmp_path, save, uses_quick_gelu):
    description = {"model_cfg": configs["quick"], "preprocess_cfg": {"mean": [0.1, 0.2, 0.3], "size": 32}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(description))
    save(small, tmp_path / "open_clip_model.safetensors")
    monkeypatch.setattr(hugging_face, "snapshot_download", lambda *_, **__: str(tmp_path))
    clip = load_clip("hf-hub:org/model")
    assert uses_quick_gelu(clip)
    assert clip.preprocess_options.mean == (0.1, 0.2, 0.3)
    assert torch.equal(clip.model.visual.proj, small.visual.proj)


def test_the_bundled_clip(monkeypatch, configs, tmp_path):
    state = build_model(configs["vit"], seed=9).state_dict()
    monkeypatch.setattr(loading, "bundled_config", lambda _: configs["vit"])
    monkeypatch.setattr(loading, "bundled_state_dict", lambda _: state)
    assert torch.equal(load_clip("fedvlp-tiny").model.visual.proj, state["visual.proj"])
    assert not torch.equal(load_clip(CLIPSpec("fedvlp-tiny", "random")).model.visual.proj, state["visual.proj"])
    with pytest.raises(UserError, match="random, the path"):
        load_clip(CLIPSpec("fedvlp-tiny", "openai"))


@pytest.mark.parametrize("file_name", ["w.safetensors", "w.pt", "w.bin"])
def test_local_files(small, tmp_path, file_name, save, uses_quick_gelu):
    clip = load_clip(CLIPSpec(NAME, save(small, tmp_path / file_name)))
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(clip.encode_image(images), small.eval().encode_image(images))
    assert not uses_quick_gelu(clip)


def test_random_weights(small):
    first = load_clip(CLIPSpec(NAME, "random", 0))
    same = load_clip(CLIPSpec(NAME, None, 0))
    other = load_clip(CLIPSpec(NAME, "random", 1))
    assert torch.equal(first.model.visual.proj, same.model.visual.proj)
    assert not torch.equal(first.model.visual.proj, other.model.visual.proj)


class Called(TorchFunctionMode):
    """Records calls of PyTorch functions."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_function__(self, function, types, arguments=(), options=None):
        self.names.add(function.__name__)
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_overwritten_weights_are_not_drawn(configs, tmp_path, save, kind, small):
    name = {"vit": NAME, "resnet": "small-resnet"}[kind]
    expected = build_model(configs[kind], seed=3).state_dict()
    path = save(build_model(configs[kind], seed=3), tmp_path / "w.safetensors")
    with Called() as called:
        found = load_clip(CLIPSpec(name, path)).model
    assert not called.names & {"normal_", "uniform_", "kaiming_uniform_"}
    with Called() as called:
        load_clip(CLIPSpec(name, "random"))
    assert called.names >= {"normal_", "uniform_", "kaiming_uniform_"}
    assert all(torch.equal(value, expected[key]) for key, value in found.state_dict().items())
    same = build_model(configs[kind], seed=4)
    assert all(torch.equal(one, other) for one, other in zip(found.buffers(), same.buffers(), strict=True))


def test_weights_of_another_architecture_are_refused(small, configs, tmp_path, save):
    other = build_model({**configs["vit"], "embed_dim": 16})
    with pytest.raises(UserError, match=r"size mismatch .*\[32, 16\].*\[32, 24\].* Set --model"):
        load_clip(CLIPSpec(NAME, save(other, tmp_path / "w.pt")))
    with pytest.raises(UserError, match=r"do not fit small: .*Missing key"):
        load_clip(CLIPSpec(NAME, save(build_model(configs["resnet"]), tmp_path / "w.pt")))


PUBLISHED = {
    "mean": [0.5, 0.4, 0.3],
    "std": [0.5, 0.6, 0.7],
    "interpolation": "bilinear",
    "resize_mode": "squash",
    "size": [32, 32],
    "fill_color": None,
}


@pytest.fixture
def load(small, tmp_path, save):
    """Load weights with this preprocess_cfg in the config next to them; None means no config."""

    def load_with(published):
        path = save(small, tmp_path / "w.safetensors")
        if published is not None:
            content = {"model_cfg": {"quick_gelu": False}, "preprocess_cfg": published}
            (tmp_path / "open_clip_config.json").write_text(json.dumps(content))
        return load_clip(CLIPSpec(NAME, path))

    return load_with


def test_a_config_next_to_the_file_sets_its_transform(load):
    """Compare with Pillow's own resizing, minus the mean and divided by the standard deviation."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 90, 3), dtype=np.uint8))
    squashed = np.asarray(picture.resize((32, 32), Image.Resampling.BILINEAR), dtype=np.float64) / 255
    expected = np.zeros((3, 32, 32))
    for colour in range(3):
        expected[colour] = (squashed[..., colour] - PUBLISHED["mean"][colour]) / PUBLISHED["std"][colour]
    found = load(PUBLISHED).preprocess(picture)
    torch.testing.assert_close(found.double(), torch.from_numpy(expected), atol=1e-5, rtol=0)


def test_clips_own_transform_in_words_is_clips_own(load):
    plain = load(None)
    own = {"mean": list(plain.preprocess_options.mean), "std": list(plain.preprocess_options.std), "mode": "RGB"}
    same = load(own)
    assert same.preprocess_options == plain.preprocess_options
    assert same.fingerprint() == plain.fingerprint()
    assert load({**own, "resize_mode": "longest"}).fingerprint() != plain.fingerprint()


@pytest.mark.parametrize(
    ("published", "message"),
    [
        ({"resize_mode": "stretch"}, "resize_mode 'stretch'; expected shortest or longest or squash"),
        ({"mode": "L"}, "mode 'L'; expected RGB"),
        ({"mean": "grey"}, "mean grey and std None; expected lists of numbers"),
        ({"interpolation": "nearest"}, "interpolation 'nearest'; expected bicubic or bilinear"),
        ({"size": 48}, "size 48; expected 32"),
    ],
)
def test_unsupported_preprocessing_is_rejected(load, published, message):
    with pytest.raises(UserError, match=rf"w\.safetensors has .*{message}"):
        load(published)


@pytest.mark.parametrize("content", ["{", "[" * 100_000])
def test_a_config_that_is_not_json_is_rejected(load, tmp_path, content):
    (tmp_path / "open_clip_config.json").write_text(content)
    with pytest.raises(UserError, match=r"open_clip_config\.json can't be read: "):
        load(None)


@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        ("model_cfg", "colour", 1, "describes no CLIP of open_clip .*unexpected keyword argument 'colour'.*Correct or"),
        ("vision_cfg", "patch_size", 0, "describes no CLIP of open_clip"),
        ("model_cfg", "vision_cfg", None, "has no open_clip_config.json with a model_cfg of vision_cfg and text_cfg"),
    ],
)
def test_a_wrong_entry_of_a_config_costs_one_line(configs, tmp_path, part, name, value, message):
    config = deepcopy(configs["vit"])
    (config if part == "model_cfg" else config[part])[name] = value
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    with pytest.raises(UserError, match=message):
        load_clip(CLIPSpec(f"local-dir:{tmp_path}", "random"))
