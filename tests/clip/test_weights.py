"""What is read of weights files, and what is refused."""

from __future__ import annotations

import json
import socket
import warnings

import pytest
import torch
from huggingface_hub import constants
from torch import nn

from fedvlp.clip import CLIPSpec, load_clip, weights
from fedvlp.utils.errors import UserError
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


class Part(nn.Module):
    """A module with the tensors of a state dict, each at its place, as OpenAI's TorchScript archives have them."""

    def __init__(self, state):
        super().__init__()
        inner = {}
        for name, value in state.items():
            first, _, rest = name.partition(".")
            if rest:
                inner.setdefault(first, {})[rest] = value
            else:
                self.register_parameter(first, nn.Parameter(value, requires_grad=False))
        for first, part in inner.items():
            self.add_module(first, Part(part))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers


@pytest.fixture
def archive(small, tmp_path):
    """A TorchScript archive of the small CLIP's tensors."""
    path = tmp_path / "small.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.script(Part(small.state_dict())).save(str(path))
    return path


def test_a_torchscript_archive_is_openais(small, archive, uses_quick_gelu):
    assert_equal(weights.read_weights(archive), small.state_dict())
    clip = load_clip(CLIPSpec(NAME, str(archive)))
    assert_equal(clip.model.state_dict(), small.state_dict())
    assert uses_quick_gelu(clip)


def test_pickled_code_is_never_run(small, tmp_path, save):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    path = save(small, tmp_path / "w.pt", extra=Trap())
    with pytest.raises(UserError, match="pickled code"):
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
