"""CLIPs with Hugging Face tokenizers and encoders, from folders and from the hub's cache, against open_clip."""

import json
import shutil
import socket

import open_clip
import pytest
import torch
import torch.nn.functional as F
from huggingface_hub import constants
from PIL import Image
from safetensors.torch import load_file, save_file

from fedvlp.clip import CLIPSpec, build_model, hugging_face, load_clip
from fedvlp.utils.errors import UserError
from tests.helpers.made_up_folders import CONFIGS, write_folder

TEXTS = ["a photo of a cat", "histology", "собака"]
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path):
    return write_folder("biomedclip", tmp_path / "clip")


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """Copy a folder's files into the hub's cache, without network."""
    place = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(place))

    def put(repository, folder, *names):
        stored = place / f"models--{repository.replace('/', '--')}"
        snapshot = stored / "snapshots" / REVISION
        (stored / "refs").mkdir(parents=True, exist_ok=True)
        (stored / "refs" / "main").write_text(REVISION)
        snapshot.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copy(folder / name, snapshot)

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        yield put


def change(folder, **text):
    """Change options of the text tower in a folder's config."""
    path = folder / "open_clip_config.json"
    described = json.loads(path.read_text())
    described["model_cfg"]["text_cfg"].update(text)
    path.write_text(json.dumps(described))


@torch.no_grad()
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_folder_is_loaded_as_open_clip_does(kind, tmp_path, monkeypatch):
    folder = write_folder(kind, tmp_path)
    monkeypatch.chdir(folder)  # where open_clip looks for the encoder
    name = f"local-dir:{folder}"
    clip = load_clip(name)
    model, _, preprocess = open_clip.create_model_and_transforms(name)
    ids = open_clip.get_tokenizer(name)(TEXTS)
    assert torch.equal(clip.tokenizer(TEXTS), ids)
    texts = model.eval().encode_text(ids, normalize=True)
    torch.testing.assert_close(F.normalize(clip.encode_text(ids), dim=-1), texts, atol=1e-6, rtol=0)
    images = torch.randn(2, 3, clip.image_size, clip.image_size)
    features = F.normalize(clip.encode_image(images), dim=-1)
    torch.testing.assert_close(features, model.encode_image(images, normalize=True), atol=1e-6, rtol=0)
    picture = Image.effect_noise((50, 90), 60).convert("RGB")
    assert torch.equal(clip.preprocess(picture), preprocess(picture))


def test_a_folder_is_found_from_here_and_from_home(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder.parent))
    fingerprints = {load_clip(f"local-dir:{path}").fingerprint() for path in (folder, "clip", "./clip", "~/clip")}
    assert len(fingerprints) == 1


@pytest.mark.parametrize(
    ("missing", "message"),
    [("open_clip_config.json", "no open_clip_config.json"), ("open_clip_model.safetensors", "no weights"), (".", "no")],
)
def test_an_incomplete_folder(folder, missing, message):
    path = folder / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(UserError, match=rf"the folder .*clip, but it has {message}.*It should hold"):
        load_clip(f"local-dir:{folder}")


def test_weights_are_found_by_open_clips_names_first(folder):
    weights = folder / "open_clip_model.safetensors"
    other = {name: value + 1 for name, value in load_file(weights).items()}
    save_file(other, folder / "aside.safetensors")
    expected = load_clip(f"local-dir:{folder}").fingerprint()
    assert load_clip(CLIPSpec(f"local-dir:{folder}", str(weights))).fingerprint() == expected
    weights.unlink()
    assert load_clip(f"local-dir:{folder}").fingerprint() != expected


def test_the_hubs_cache_is_enough(folder, cache):
    """The tokenizer and the encoder are in separate repositories, as for BiomedCLIP."""
    change(folder, hf_tokenizer_name="org/tokenizer", hf_model_name="org/encoder")
    with pytest.raises(UserError, match=r"open_clip_config\.json of https://huggingface\.co/org/model, "):
        load_clip("hf-hub:org/model")
    cache("org/model", folder, "open_clip_config.json")
    with pytest.raises(UserError, match=r"weights of https://huggingface.co/org/model, .*could not be downloaded"):
        load_clip("hf-hub:org/model")
    cache("org/model", folder, "open_clip_model.safetensors")
    with pytest.raises(UserError, match=r"tokenizer \(.*\) of https://huggingface.co/org/tokenizer, .*local-dir:"):
        load_clip("hf-hub:org/model")
    cache("org/tokenizer", folder, "tokenizer.json", "tokenizer_config.json")
    with pytest.raises(UserError, match=r"config\.json \(.*\) of https://huggingface.co/org/encoder, .*local-dir:"):
        load_clip("hf-hub:org/model")
    cache("org/encoder", folder / "encoder", "config.json")
    found = load_clip("hf-hub:org/model")
    assert found.fingerprint() == load_clip(f"local-dir:{folder}").fingerprint()
    beside = CLIPSpec("hf-hub:somewhere/else", str(folder / "open_clip_model.safetensors"))
    assert load_clip(beside).fingerprint() == found.fingerprint()


def test_published_weights_are_taken_from_the_cache(folder, cache, small, save):
    cache("some/small", folder)
    snapshot = next((folder.parent / "hub").glob("*/snapshots/*"))
    save(small, snapshot / "open_clip_model.safetensors")
    assert torch.equal(load_clip("small").model.visual.proj, small.visual.proj)


def test_an_encoders_config_may_lie_in_the_folder_itself(folder, cache):
    expected = load_clip(f"local-dir:{folder}").fingerprint()
    encoder = folder / "encoder" / "config.json"
    shutil.move(encoder, folder / "config.json")
    assert load_clip(f"local-dir:{folder}").fingerprint() == expected
    # A whole CLIP in transformers' format has a file of this name as well.
    (folder / "config.json").write_text(json.dumps({"model_type": "clip"}))
    with pytest.raises(UserError, match=r"text encoder's config\.json"):
        load_clip(f"local-dir:{folder}")


def test_a_tokenizer_next_to_weights_is_used(tmp_path, monkeypatch):
    folder = write_folder("worldwide", tmp_path)
    registered = {**open_clip.factory._MODEL_CONFIGS, "here": CONFIGS["worldwide"]}
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIGS", registered)
    (folder / "open_clip_config.json").unlink()
    clip = load_clip(CLIPSpec("here", str(folder / "open_clip_model.safetensors")))
    assert clip.tokenizer(["cat"])[0, 0] == 0


def test_a_tokenizer_is_part_of_the_fingerprint(folder):
    clip = load_clip(f"local-dir:{folder}")
    clip.tokenizer(TEXTS)
    unused = load_clip(f"local-dir:{folder}")
    assert clip.fingerprint() == unused.fingerprint()
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"cat"', '"cow"'))
    assert load_clip(f"local-dir:{folder}").fingerprint() != clip.fingerprint()


def test_an_encoder_without_name_is_not_used(configs):
    """open_clip saves such models like models with another library's encoder."""
    text = {**configs["vit"]["text_cfg"], "hf_model_name": None, "hf_tokenizer_name": None, "tokenizer_kwargs": None}
    model = build_model({**configs["vit"], "text_cfg": text})
    assert isinstance(model.text, open_clip.transformer.TextTransformer)
    assert hugging_face.load_tokenizer({"text_cfg": text})(["a cat"]).shape == (1, 77)


def test_without_transformers(folder, monkeypatch):
    monkeypatch.setattr(hugging_face, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r'pip install "fedvlp\[hf\]"'):
        load_clip(f"local-dir:{folder}")


def test_a_tokenizers_code_is_never_run(folder):
    path = folder / "tokenizer_config.json"
    asked = {"auto_map": {"AutoTokenizer": ["trap.Trap", "trap.Trap"]}, "tokenizer_class": "Trap"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **asked}))
    (folder / "trap.py").write_text(f"open({str(folder / 'sprung')!r}, 'w')")
    change(folder, tokenizer_kwargs={"trust_remote_code": True})
    with pytest.raises(UserError, match="cannot be loaded"):
        load_clip(f"local-dir:{folder}")
    assert not (folder / "sprung").exists()


def test_a_damaged_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"The tokenizer in .*clip cannot be loaded \(.*Copy or download"):
        load_clip(f"local-dir:{folder}")


@pytest.mark.parametrize("shape", [(), (1,), None])
def test_the_bias_of_logits(shape, tmp_path):
    folder = write_folder("siglip", tmp_path)
    path = folder / "open_clip_model.safetensors"
    weights = load_file(path)
    bias = weights.pop("logit_bias")
    if shape is not None:
        weights["logit_bias"] = bias.reshape(shape)
    save_file(weights, path)
    assert load_clip(f"local-dir:{folder}").model.logit_bias.item() == (0 if shape is None else -10)
