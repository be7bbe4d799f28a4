"""What names and tags stand for."""

from __future__ import annotations

import json

import open_clip
import pytest
import torch

from fedvlp.clip import CLIPSpec, build_model, load_clip
from fedvlp.clip.loading import sources
from fedvlp.utils.errors import UserError

NAME = "small"


@pytest.mark.parametrize(("tag", "quick"), [("openai", True), ("auto", True), ("laion", False)])
def test_a_tag_brings_its_activation_and_transform(small, monkeypatch, tmp_path, tag, quick, save, uses_quick_gelu):
    monkeypatch.setattr(open_clip, "download_pretrained", lambda _: save(small, tmp_path / "w.safetensors"))
    clip = load_clip(CLIPSpec(NAME, tag))
    assert uses_quick_gelu(clip) is quick
    assert torch.equal(clip.model.visual.proj, small.visual.proj)
    assert clip.preprocess_options.mean == ((0.0, 0.0, 0.0) if tag == "laion" else open_clip.OPENAI_DATASET_MEAN)
    assert clip.preprocess_options.size == 32


def test_unknown_names_suggest_near_ones():
    with pytest.raises(UserError, match="ViT-B-16"):
        load_clip(CLIPSpec("ViT-B16", "random"))
    with pytest.raises(UserError, match="fedvlp-tiny"):
        load_clip("fedvlp-tony")


def test_unknown_tags_list_the_known_ones(small):
    with pytest.raises(UserError, match="openai, laion, random"):
        load_clip(CLIPSpec(NAME, "laion3b"))
    with pytest.raises(UserError, match="no weights by OpenAI"):
        load_clip("ViT-H-14")


@pytest.mark.parametrize("name", ["ViT-B-16-SigLIP", "roberta-ViT-B-32", "ViT-H-14-CLIPA"])
@pytest.mark.parametrize("weights", ["auto", "random"])
def test_a_tokenizer_of_another_library_is_refused(name, weights):
    with pytest.raises(UserError, match=f"open_clip's own tokenizer, but {name} .*for example ViT-B-16"):
        load_clip(CLIPSpec(name, weights))


def test_a_hub_models_tokenizer_of_another_library_is_refused(configs, monkeypatch, tmp_path):
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": configs["vit"]}))
    monkeypatch.setattr(sources, "download_pretrained_from_hf", lambda _, name="w": str(tmp_path / name))

    def refuse(_):
        raise ModuleNotFoundError("No module named 'transformers'")

    monkeypatch.setattr(open_clip, "get_tokenizer", refuse)
    with pytest.raises(UserError, match="open_clip's own tokenizer, but hf-hub:org/model"):
        load_clip("hf-hub:org/model")


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


def test_a_hub_model_comes_with_its_config(small, configs, monkeypatch, tmp_path, save, uses_quick_gelu):
    description = {"model_cfg": configs["quick"], "preprocess_cfg": {"mean": [0.1, 0.2, 0.3], "size": 32}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(description))
    save(small, tmp_path / "open_clip_model.safetensors")
    monkeypatch.setattr(
        sources, "download_pretrained_from_hf", lambda _, name="open_clip_model.safetensors": str(tmp_path / name)
    )
    monkeypatch.setattr(open_clip, "get_tokenizer", lambda _: open_clip.SimpleTokenizer())
    clip = load_clip("hf-hub:org/model")
    assert uses_quick_gelu(clip)
    assert clip.preprocess_options.mean == (0.1, 0.2, 0.3)
    assert torch.equal(clip.model.visual.proj, small.visual.proj)


def test_the_bundled_clip(monkeypatch, configs, tmp_path):
    state = build_model(configs["vit"], seed=9).state_dict()
    monkeypatch.setattr(sources, "bundled_config", lambda: configs["vit"])
    monkeypatch.setattr(sources, "bundled_state_dict", lambda: state)
    assert torch.equal(load_clip("fedvlp-tiny").model.visual.proj, state["visual.proj"])
    assert not torch.equal(load_clip(CLIPSpec("fedvlp-tiny", "random")).model.visual.proj, state["visual.proj"])
    with pytest.raises(UserError, match="random, the path"):
        load_clip(CLIPSpec("fedvlp-tiny", "openai"))
