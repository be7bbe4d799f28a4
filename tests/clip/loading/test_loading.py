from __future__ import annotations

import hashlib
import json
import warnings

import open_clip
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedvlp.clip import CLIPSpec, build_model, load_clip
from fedvlp.clip.loading import sources, weights
from fedvlp.utils.errors import UserError

NAME = "small"


@pytest.fixture
def small(monkeypatch, configs):
    """A small architecture under a name that open_clip knows, with and without QuickGELU, and two published tags."""
    registered = {**open_clip.factory._MODEL_CONFIGS, NAME: configs["vit"], "small-resnet": configs["resnet"]}
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIGS", registered)
    tags = {
        "openai": {"url": "https://example.org/abc/small.pt", "hf_hub": "some/small/", "quick_gelu": True},
        "laion": {"url": "https://example.org/laion.pt", "quick_gelu": False, "mean": (0.0, 0.0, 0.0)},
    }
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, NAME, tags)
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, f"{NAME}-quickgelu", {"openai": tags["openai"]})
    return build_model(configs["vit"], seed=5)


@pytest.fixture
def offline(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(open_clip, "download_pretrained", refuse)
    monkeypatch.setattr(sources, "download_pretrained_from_hf", refuse)


def save(model, path, **extra):
    if path.suffix == ".safetensors":
        save_file(model.state_dict(), path)
    else:
        torch.save({"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}, **extra}, path)
    return str(path)


def uses_quick_gelu(clip):
    return any(type(module).__name__ == "QuickGELU" for module in clip.modules())


@pytest.mark.parametrize("file_name", ["w.safetensors", "w.pt", "w.bin"])
def test_local_files(small, tmp_path, file_name):
    clip = load_clip(CLIPSpec(NAME, save(small, tmp_path / file_name)))
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(clip.encode_image(images), small.eval().encode_image(images))
    assert not uses_quick_gelu(clip)


def test_a_half_precision_file_is_run_in_single_precision(small, tmp_path):
    clip = load_clip(CLIPSpec(NAME, save(small.half(), tmp_path / "w.pt")))
    assert {parameter.dtype for parameter in clip.parameters()} == {torch.float32}


def test_resnet_files(small, configs, tmp_path):
    model = build_model(configs["resnet"], seed=3)
    clip = load_clip(CLIPSpec("small-resnet", save(model, tmp_path / "w.safetensors")))
    images = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(clip.encode_image(images), model.eval().encode_image(images))


@pytest.mark.parametrize(
    ("name", "file_name", "quick"),
    [
        (NAME, "w.pt", False),
        (f"{NAME}-quickgelu", "w.pt", True),
        (NAME, "vit_openai.safetensors", True),
        (NAME, "small-quickgelu-400m.pt", True),
    ],
)
def test_a_local_files_activation(small, tmp_path, name, file_name, quick):
    assert uses_quick_gelu(load_clip(CLIPSpec(name, save(small, tmp_path / file_name)))) is quick


@pytest.mark.parametrize("quick", [True, False])
def test_a_config_beside_the_file_says_its_activation(small, tmp_path, quick):
    path = save(small.half().float(), tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": {"quick_gelu": quick}}))
    assert uses_quick_gelu(load_clip(CLIPSpec(NAME, path))) is quick


def test_half_precision_numbers_in_single_precision_are_openais(small, tmp_path):
    assert uses_quick_gelu(load_clip(CLIPSpec(NAME, save(small.half().float(), tmp_path / "w.safetensors"))))
    assert not uses_quick_gelu(load_clip(CLIPSpec(NAME, save(small.half(), tmp_path / "half.safetensors"))))


@pytest.mark.parametrize(("tag", "quick"), [("openai", True), ("auto", True), ("laion", False)])
def test_a_tag_brings_its_activation_and_transform(small, monkeypatch, tmp_path, tag, quick):
    monkeypatch.setattr(open_clip, "download_pretrained", lambda _: save(small, tmp_path / "w.safetensors"))
    clip = load_clip(CLIPSpec(NAME, tag))
    assert uses_quick_gelu(clip) is quick
    assert torch.equal(clip.model.visual.proj, small.visual.proj)
    assert clip.preprocess_options.mean == ((0.0, 0.0, 0.0) if tag == "laion" else open_clip.OPENAI_DATASET_MEAN)
    assert clip.preprocess_options.size == 32


def test_openais_archive_is_opened_and_no_other(small, monkeypatch, tmp_path):
    class Archive(nn.Module):
        def __init__(self, state):
            super().__init__()
            for name, value in state.items():
                self.register_buffer(name.replace(".", "_"), value)

        def forward(self, numbers):
            return numbers

    path = tmp_path / "small.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Archive({"one": torch.ones(2)})).save(str(path))
    with pytest.raises(UserError, match="TorchScript"):
        weights.read_weights(path)
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(weights, "_openai_checksums", lambda: {checksum})
    assert torch.equal(weights.read_weights(path)["one"], torch.ones(2))
    assert weights.uses_quick_gelu(path, {})


def test_openais_checksums_are_known():
    assert "5806e77cd80f8b59890b7e101eabd078d9fb84e6937f9e85e4ecb61988df416f" in weights._openai_checksums()


def test_random_weights(small):
    first, same, other = (
        load_clip(CLIPSpec(NAME, wanted, seed)) for wanted, seed in (("random", 0), (None, 0), ("random", 1))
    )
    assert torch.equal(first.model.visual.proj, same.model.visual.proj)
    assert not torch.equal(first.model.visual.proj, other.model.visual.proj)


def test_pickled_code_is_never_run(small, tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    path = save(small, tmp_path / "w.pt", extra=Trap())
    with pytest.raises(UserError, match="pickled code"):
        load_clip(CLIPSpec(NAME, path))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("file_name", ["w.pt", "w.safetensors"])
def test_damaged_files_are_refused(small, tmp_path, file_name):
    (tmp_path / file_name).write_bytes(b"not weights at all")
    with pytest.raises(UserError, match="w\\."):
        load_clip(CLIPSpec(NAME, str(tmp_path / file_name)))


def test_files_without_a_state_dict_are_refused(small, tmp_path):
    torch.save({"epoch": 3}, tmp_path / "w.pt")
    with pytest.raises(UserError, match="state dict"):
        load_clip(CLIPSpec(NAME, str(tmp_path / "w.pt")))


def test_a_missing_file_is_named(small):
    with pytest.raises(UserError, match=r"nowhere\.pt"):
        load_clip(CLIPSpec(NAME, "/somewhere/nowhere.pt"))


def test_weights_of_another_architecture_are_refused(small, configs, tmp_path):
    other = build_model({**configs["vit"], "embed_dim": 16})
    with pytest.raises(UserError, match=r"\(32, 16\) instead of \(32, 24\)"):
        load_clip(CLIPSpec(NAME, save(other, tmp_path / "w.pt")))
    with pytest.raises(UserError, match="is missing"):
        load_clip(CLIPSpec(NAME, save(build_model(configs["resnet"]), tmp_path / "w.pt")))


def test_unknown_names_suggest_near_ones():
    with pytest.raises(UserError, match="ViT-B-16"):
        load_clip(CLIPSpec("ViT-B16", "random"))
    with pytest.raises(UserError, match="fedvlp-tiny"):
        load_clip("fedvlp-tony")


def test_unknown_tags_list_the_known_ones(small):
    with pytest.raises(UserError, match="openai, laion, random"):
        load_clip(CLIPSpec(NAME, "laion3b"))
    with pytest.raises(UserError, match="no weights by OpenAI"):
        load_clip("ViT-B-16-SigLIP")


def test_openais_own_spelling_of_names():
    assert sources._registered_config("ViT-B-16") == open_clip.get_model_config("ViT-B-16")
    with pytest.raises(UserError, match="for ViT-B/16"):
        sources._weights_path(CLIPSpec("ViT-B/16", "nothing"), tags=["openai"])


def test_without_network_the_file_to_download_is_named(small, offline):
    with pytest.raises(UserError) as raised:
        load_clip(NAME)
    message = str(raised.value)
    assert "https://huggingface.co/some/small/resolve/main/open_clip_model.safetensors" in message
    assert "--model.clip.name small-quickgelu --model.clip.pretrained" in message
    with pytest.raises(UserError, match=r"https://huggingface.co/org/model .*--model.clip.pretrained"):
        load_clip("hf-hub:org/model")


def test_a_hub_model_comes_with_its_config(small, configs, monkeypatch, tmp_path):
    description = {"model_cfg": configs["quick"], "preprocess_cfg": {"mean": [0.1, 0.2, 0.3], "size": 99}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(description))
    save(small, tmp_path / "open_clip_model.safetensors")
    monkeypatch.setattr(
        sources, "download_pretrained_from_hf", lambda _, name="open_clip_model.safetensors": str(tmp_path / name)
    )
    monkeypatch.setattr(open_clip, "get_tokenizer", lambda _: open_clip.SimpleTokenizer())
    clip = load_clip("hf-hub:org/model")
    assert uses_quick_gelu(clip)
    assert clip.preprocess_options.mean == [0.1, 0.2, 0.3]
    assert torch.equal(clip.model.visual.proj, small.visual.proj)


def test_the_bundled_clip(monkeypatch, configs, tmp_path):
    state = build_model(configs["vit"], seed=9).state_dict()
    monkeypatch.setattr(sources, "bundled_config", lambda: configs["vit"])
    monkeypatch.setattr(sources, "bundled_state_dict", lambda: state)
    assert torch.equal(load_clip("fedvlp-tiny").model.visual.proj, state["visual.proj"])
    assert not torch.equal(load_clip(CLIPSpec("fedvlp-tiny", "random")).model.visual.proj, state["visual.proj"])
    with pytest.raises(UserError, match="random, the path"):
        load_clip(CLIPSpec("fedvlp-tiny", "openai"))
