"""Models get the weights of files and no others."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import TorchFunctionMode

from fedvlp.clip import CLIPSpec, build_model, load_clip
from fedvlp.utils.errors import UserError

NAME = "small"


@pytest.mark.parametrize("file_name", ["w.safetensors", "w.pt", "w.bin"])
def test_local_files(small, tmp_path, file_name, save, uses_quick_gelu):
    clip = load_clip(CLIPSpec(NAME, save(small, tmp_path / file_name)))
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(clip.encode_image(images), small.eval().encode_image(images))
    assert not uses_quick_gelu(clip)


def test_a_half_precision_file_is_run_in_single_precision(small, tmp_path, save):
    clip = load_clip(CLIPSpec(NAME, save(small.half(), tmp_path / "w.pt")))
    assert {parameter.dtype for parameter in clip.parameters()} == {torch.float32}


def test_resnet_files(small, configs, tmp_path, save):
    model = build_model(configs["resnet"], seed=3)
    clip = load_clip(CLIPSpec("small-resnet", save(model, tmp_path / "w.safetensors")))
    images = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(clip.encode_image(images), model.eval().encode_image(images))


def test_random_weights(small):
    first = load_clip(CLIPSpec(NAME, "random", 0))
    same = load_clip(CLIPSpec(NAME, None, 0))
    other = load_clip(CLIPSpec(NAME, "random", 1))
    assert torch.equal(first.model.visual.proj, same.model.visual.proj)
    assert not torch.equal(first.model.visual.proj, other.model.visual.proj)


class Called(TorchFunctionMode):
    """Notes which of PyTorch's functions come to be called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_function__(self, function, types, arguments=(), options=None):
        self.names.add(function.__name__)
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_what_a_file_overwrites_is_not_drawn(configs, tmp_path, save, kind, small):
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
    with pytest.raises(UserError, match=r"\(32, 16\) instead of \(32, 24\)"):
        load_clip(CLIPSpec(NAME, save(other, tmp_path / "w.pt")))
    with pytest.raises(UserError, match="is missing"):
        load_clip(CLIPSpec(NAME, save(build_model(configs["resnet"]), tmp_path / "w.pt")))
