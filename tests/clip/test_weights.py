"""What is read of weights files, and what is refused."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import warnings

import open_clip
import pytest
import torch
from huggingface_hub import constants

from fedvlp.clip import CLIPSpec, hugging_face, load_clip, weights
from fedvlp.utils.errors import UserError
from tests.helpers.archives import save_archive, save_trap
from tests.helpers.assertions import assert_equal

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


@pytest.mark.parametrize("quick", [True, False])
def test_a_config_beside_the_file_says_its_activation(small, tmp_path, quick, save, uses_quick_gelu):
    path = save(small.half().float(), tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": {"quick_gelu": quick}}))
    assert uses_quick_gelu(load_clip(CLIPSpec(NAME, path))) is quick


def test_half_precision_numbers_in_single_precision_are_openais(small, tmp_path, save, uses_quick_gelu):
    assert uses_quick_gelu(load_clip(CLIPSpec(NAME, save(small.half().float(), tmp_path / "w.safetensors"))))
    assert not uses_quick_gelu(load_clip(CLIPSpec(NAME, save(small.half(), tmp_path / "half.safetensors"))))


def publish(monkeypatch, path):
    """Let open_clip list the SHA-256 of a file as one of OpenAI's."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    address = f"https://openaipublic.azureedge.net/clip/models/{digest}/{path.name}"
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED[NAME]["openai"], "url", address)


@pytest.fixture
def archive(small, tmp_path):
    """A TorchScript archive of the small CLIP's tensors, and of the sizes that OpenAI's archives contain."""
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
    """A file that a stranger's archive overwrites when TorchScript loads it; the test fails if that happens."""
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


@pytest.mark.parametrize("suffix", [*weights.WEIGHT_SUFFIXES, ".jit", ""])
def test_a_strangers_archive_is_not_run(small, tmp_path, victim, suffix):
    path = save_trap(tmp_path / f"weights{suffix}", victim)
    for name in (NAME, "fedvlp-tiny"):
        with pytest.raises(UserError, match=r"weights(\.\w+)? is a TorchScript archive"):
            load_clip(CLIPSpec(name, str(path)))


@pytest.mark.parametrize("file_name", ["open_clip_pytorch_model.bin", "open_clip_model.safetensors", "any.pth"])
def test_a_strangers_archive_is_not_run_from_a_folder_or_the_hub(
    small, configs, monkeypatch, tmp_path, victim, file_name
):
    folder = tmp_path / "clip"
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": configs["vit"]}))
    path = save_trap(folder / file_name, victim)
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


def test_a_missing_file_is_named(small):
    with pytest.raises(UserError, match=r"nowhere\.pt"):
        load_clip(CLIPSpec(NAME, "/somewhere/nowhere.pt"))


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize(
    "content", [b"root:x:0:0:root:/root:/bin/bash\n", b"", b"\x80", b"PK\x03\x04", b"(((((((((", b"cos\n"]
)
def test_a_file_of_another_kind_is_no_weights(tmp_path, content, suffix):
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"weights\{suffix} cannot be read as plain tensors"):
        weights.read_weights(path)


def test_weights_that_are_no_numbers_are_refused(tmp_path):
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
