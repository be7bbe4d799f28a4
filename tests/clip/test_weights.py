"""Reading of weights files, and rejection of unsafe or damaged ones."""

import hashlib
import json
import re
import socket
import warnings

import open_clip
import pytest
import torch
from huggingface_hub import constants
from transformers import CLIPConfig, CLIPModel

from fedvlp.clip import CLIPSpec, hugging_face, load_clip, weights
from fedvlp.utils.errors import UserError
from tests.helpers.archives import save_archive, save_trap
from tests.helpers.assertions import assert_equal
from tests.helpers.documents import ROOT, Document

NAME = "small"


@pytest.mark.parametrize(
    ("name", "file_name", "quick"),
    [
        (NAME, "w.pt", False),
        (f"{NAME}-quickgelu", "w.pt", True),
        (NAME, "vit_openai.safetensors", True),
        (NAME, "small-quickgelu-400m.pt", True),
    ],
)
def test_a_local_files_activation(small, tmp_path, name, file_name, quick, save, uses_quick_gelu):
    assert uses_quick_gelu(load_clip(CLIPSpec(name, save(small, tmp_path / file_name)))) is quick


def test_half_precision_numbers_in_single_precision_are_openais(small, tmp_path, save, uses_quick_gelu):
    assert uses_quick_gelu(load_clip(CLIPSpec(NAME, save(small.half().float(), tmp_path / "w.safetensors"))))
    assert not uses_quick_gelu(load_clip(CLIPSpec(NAME, save(small.half(), tmp_path / "half.safetensors"))))


TRANSFORM = ("mean", "std", "interpolation", "resize_mode")


def of_entry(entry):
    """Read mean, deviation, interpolation and resizing from an entry in open_clip's list."""
    return {key: entry[key] for key in TRANSFORM}


def test_every_published_file_gets_its_preprocessing_or_is_refused(tmp_path, caplog):
    refused = set()
    for name, tag in open_clip.list_pretrained():
        entry = open_clip.get_pretrained_cfg(name, tag)
        try:
            options = weights.assume_options(name, tmp_path / "open_clip_model.safetensors", {}, quick_gelu=False)
        except UserError:
            refused.add((name, tag))
        else:
            assert of_entry(options) == of_entry(entry), (name, tag)
        assert weights.published_weights(name)[tag] == entry
    assert {name for name, _ in refused} == {"ViT-L-14", "ViT-H-14", "ViT-H-14-quickgelu"}
    assert len(refused) == 12 + 4 + 2


def test_a_files_preprocessing_and_activation_are_reported(small, configs, monkeypatch, tmp_path, save, caplog):
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, NAME, {"laion": {"quick_gelu": True, "std": (0.5, 0.5, 0.5)}})
    path = save(small, tmp_path / "w.safetensors")
    clip = load_clip(CLIPSpec(NAME, path))
    assert clip.preprocess_options.std == (0.5, 0.5, 0.5)
    assert clip.config["quick_gelu"]
    assert f"Assuming QuickGELU and the preprocessing of small's published weights for {path}" in caplog.text
    caplog.clear()
    monkeypatch.delitem(open_clip.pretrained._PRETRAINED, NAME)
    clip = load_clip(CLIPSpec(NAME, path))
    assert clip.preprocess_options.std == open_clip.OPENAI_DATASET_STD
    assert f"Assuming GELU and the preprocessing of OpenAI's weights for {path}" in caplog.text
    caplog.clear()
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": configs["vit"]}))
    load_clip(CLIPSpec(NAME, path))
    assert not caplog.records


def test_the_quickgelu_suffix_keeps_the_preprocessing(caplog, tmp_path):
    options = weights.assume_options("ViT-B-16-SigLIP-quickgelu", tmp_path / "w.pt", {}, quick_gelu=True)
    assert of_entry(options) == of_entry(open_clip.get_pretrained_cfg("ViT-B-16-SigLIP", "webli"))
    assert options["quick_gelu"]


def test_a_tag_resolves_ambiguous_preprocessing(small, monkeypatch, tmp_path, save, caplog):
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED[NAME]["laion"], "resize_mode", "squash")
    path = save(small, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=r"differ in preprocessing, and .*w\.safetensors .* from: openai, laion\."):
        load_clip(CLIPSpec(NAME, path))
    for tag, mode, quick in (("laion", "squash", False), ("openai", "shortest", True)):
        clip = load_clip(CLIPSpec(NAME, path, tag=tag))
        assert clip.preprocess_options.resize_mode == mode
        assert clip.config["quick_gelu"] is quick
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "pretrained", "tag"),
    [(NAME, "w.pt", "laion3b"), (NAME, "laion", "openai"), ("hf-hub:some/model", "auto", "openai")],
)
def test_a_tag_without_a_weights_file_is_rejected(small, name, pretrained, tag):
    with pytest.raises(UserError, match=r"Expected --model\.clip\.tag for a weights file, .*Correct or remove"):
        load_clip(CLIPSpec(name, pretrained, tag=tag))


def test_openais_archive_needs_no_tag(small, archive, monkeypatch, caplog):
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED[NAME]["laion"], "resize_mode", "squash")
    publish(monkeypatch, archive)
    assert load_clip(CLIPSpec(NAME, str(archive))).preprocess_options.resize_mode == "shortest"
    assert not caplog.records


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.module.", ""])
def test_a_prefix_of_all_names_is_removed(small, tmp_path, prefix):
    path = tmp_path / "w.pt"
    torch.save({"state_dict": {prefix + name: value for name, value in small.state_dict().items()}}, path)
    assert_equal(weights.read_weights(path), small.state_dict())


def test_weights_of_transformers_are_recognised_and_convert_as_the_page_shows(monkeypatch, configs, tmp_path):
    vision = {"hidden_size": 48, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3}
    text = {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    vision |= {"image_size": 32, "patch_size": 8}
    text |= {"eos_token_id": 49407, "bos_token_id": 49406}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)).eval()
    theirs.save_pretrained(tmp_path)
    registered = {**open_clip.factory._MODEL_CONFIGS, NAME: configs["quick"]}
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIGS", registered)
    with pytest.raises(UserError, match=r"they have transformers' names. .*'Which CLIP' in the documentation"):
        load_clip(CLIPSpec(NAME, str(tmp_path / "model.safetensors")))
    monkeypatch.chdir(tmp_path)
    for code in Document(ROOT / "docs" / "which_clip.md").blocks("python"):
        exec(compile(code, "which_clip.md", "exec"), {})
    ours = load_clip(CLIPSpec(NAME, "open_clip_model.safetensors"))
    pixels = torch.randn(2, 3, 32, 32)
    ids = ours.tokenizer(["a cat", "a photo of a dog"])
    with torch.no_grad():
        expected = theirs(input_ids=ids, pixel_values=pixels)
        images = torch.nn.functional.normalize(ours.encode_image(pixels), dim=-1)
        texts = torch.nn.functional.normalize(ours.encode_text(ids), dim=-1)
    torch.testing.assert_close(images, expected.image_embeds, atol=1e-5, rtol=0)
    torch.testing.assert_close(texts, expected.text_embeds, atol=1e-5, rtol=0)


def publish(monkeypatch, path):
    """Make open_clip list the SHA-256 of a file as one of OpenAI's."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    address = f"https://openaipublic.azureedge.net/clip/models/{digest}/{path.name}"
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED[NAME]["openai"], "url", address)


@pytest.fixture
def archive(small, tmp_path):
    """A TorchScript archive with the small CLIP's tensors and the sizes in OpenAI's archives."""
    sizes = {name: torch.tensor(7) for name in ("input_resolution", "context_length", "vocab_size")}
    return save_archive({**small.state_dict(), **sizes}, tmp_path / "small.pt")


def test_openais_torchscript_archive_is_loaded(small, archive, monkeypatch, uses_quick_gelu):
    publish(monkeypatch, archive)
    clip = load_clip(CLIPSpec(NAME, str(archive)))
    assert_equal(clip.model.state_dict(), small.state_dict())
    assert uses_quick_gelu(clip)


def test_the_digests_of_all_archives_of_openai_are_listed():
    names = [name for name in open_clip.list_openai_models() if not name.endswith("quickgelu")]
    addresses = [open_clip.get_pretrained_url(name, "openai") for name in names]
    assert len(names) == 9
    assert all(
        re.fullmatch(r"https://openaipublic\.azureedge\.net/.*/[0-9a-f]{64}/[\w-]+\.pt", one) for one in addresses
    )


def test_another_torchscript_archive_is_refused_with_a_way_out(small, archive, monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r"small\.pt is a TorchScript archive: .*\.state_dict\(\), 'weights\.pt'\)\.$"):
        load_clip(CLIPSpec(NAME, str(archive)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.save(torch.jit.load(archive).state_dict(), tmp_path / "weights.pt")
    clip = load_clip(CLIPSpec(NAME, str(tmp_path / "weights.pt")))
    assert_equal(clip.model.state_dict(), small.state_dict())


@pytest.fixture
def victim(tmp_path):
    """A file that a malicious archive overwrites when TorchScript loads it; the test fails if that happens."""
    path = tmp_path / "victim"
    path.write_text("precious")
    yield path
    assert path.read_bytes() == b"precious"


def test_the_trap_of_these_tests_works(tmp_path):
    trap = save_trap(tmp_path / "trap.pt", tmp_path / "written")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.load(trap)
    assert (tmp_path / "written").exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ""])
def test_a_strangers_archive_is_not_run(small, tmp_path, victim, suffix):
    path = save_trap(tmp_path / f"weights{suffix}", victim)
    for name in (NAME, "fedvlp-tiny"):
        with pytest.raises(UserError, match=r"weights(\.\w+)? is a TorchScript archive"):
            load_clip(CLIPSpec(name, str(path)))


def test_a_strangers_archive_is_not_run_from_a_folder_or_the_hub(small, configs, monkeypatch, tmp_path, victim):
    folder = tmp_path / "clip"
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": configs["vit"]}))
    path = save_trap(folder / "any.pth", victim)
    monkeypatch.setattr(hugging_face, "snapshot_download", lambda *_, **__: str(folder))
    monkeypatch.setattr(open_clip, "download_pretrained", lambda _: str(path))
    for spec in (f"local-dir:{folder}", "hf-hub:some/model", CLIPSpec(NAME, "laion")):
        with pytest.raises(UserError, match="is a TorchScript archive"):
            load_clip(spec)


def test_pickled_code_is_never_run(small, tmp_path, save):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    path = save(small, tmp_path / "w.pt", extra=Trap())
    with pytest.raises(UserError, match="Python objects"):
        load_clip(CLIPSpec(NAME, path))
    assert not (tmp_path / "sprung").exists()


def test_files_without_a_state_dict_are_refused(small, tmp_path):
    torch.save({"epoch": 3}, tmp_path / "w.pt")
    with pytest.raises(UserError, match="state dict"):
        load_clip(CLIPSpec(NAME, str(tmp_path / "w.pt")))


@pytest.mark.parametrize(("content", "suffix"), [(b"root:x", ".pt"), (b"", ".safetensors"), (b"PK\x03\x04", ".pt")])
def test_a_file_of_another_kind_is_no_weights(tmp_path, content, suffix):
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"weights\{suffix} cannot be read as plain tensors"):
        weights.read_weights(path)


def test_weights_with_nan_or_infinity_are_rejected(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save({"good": torch.ones(2), "bad": torch.tensor([1.0, float("nan")]), "whole": torch.tensor(3)}, path)
    with pytest.raises(UserError, match="NaN or infinity, in bad"):
        weights.read_weights(path)


@pytest.mark.parametrize("name", ["ViT-B-16", "hf-hub:some/model"])
def test_without_a_network_the_hub_is_asked_once(monkeypatch, tmp_path, name):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        with pytest.raises(UserError, match=r"could not be downloaded \(.{,50}\[Errno \d+\] Connection refused\)"):
            load_clip(name)
