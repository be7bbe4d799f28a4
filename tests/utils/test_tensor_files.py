"""Files of tensors are restored unchanged, equal content gives equal bytes, and damage is one clear error."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import check_header, read_tensors, write_tensors

HEADER = {"kind": "made up", "Straße\n": [1, None, "\udcff"], "deep": {"a": 0.5}}


def tensors():
    generator = torch.Generator().manual_seed(5)
    wide = torch.randn(4, 6, generator=generator)
    return {
        "personal/2/bias": torch.randn(3, 5, generator=generator),
        "personal/0/bias": torch.randn(2, generator=generator).half(),
        "optimizer/0/step": torch.tensor(7.0),
        "empty": torch.zeros(0, 4),
        "seen": torch.tensor([True, False]),
        "prompt": wide.mT,  # not contiguous
        "view": wide[1],  # shares the memory of the prompt
    }


@pytest.fixture
def path(tmp_path):
    write_tensors(tmp_path / "made.safetensors", tensors(), HEADER)
    return tmp_path / "made.safetensors"


def test_tensors_are_restored_unchanged(path):
    read, header = read_tensors(path)
    assert header == read_tensors(path, None)[1] == HEADER
    assert read.keys() == tensors().keys() == load_file(path).keys()
    for name, value in tensors().items():
        assert read[name].dtype == value.dtype
        assert torch.equal(read[name], value)
    assert set(read_tensors(path, "personal/")[0]) == {"personal/0/bias", "personal/2/bias"}
    assert read_tensors(path, "person/")[0] == read_tensors(path, None)[0] == {}


def test_equal_content_gives_equal_bytes(path, tmp_path):
    backwards = dict(reversed(tensors().items()))
    write_tensors(tmp_path / "again.safetensors", backwards, dict(reversed(HEADER.items())))
    assert path.read_bytes() == (tmp_path / "again.safetensors").read_bytes()


def test_truncated_files_and_flipped_bits_are_reported(path):
    content = path.read_bytes()
    for length in (0, 5, 100, -1):
        path.write_bytes(content[:length])
        for group in ("", None):
            with pytest.raises(UserError, match=f"{path} is damaged, or not written by fedvlp"):
                read_tensors(path, group)
    for index in range(0, len(content), 7):  # all parts of the file, and all bits of a byte
        damaged = bytearray(content)
        damaged[index] ^= 1 << index % 8
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=f"{path} is damaged, or not written by fedvlp"):
            read_tensors(path, "optimizer/")


def test_other_files_are_rejected(tmp_path):
    save_file({"prompt": torch.zeros(2)}, tmp_path / "plain.safetensors")
    (tmp_path / "text.safetensors").write_text("hello")
    for name in ("plain.safetensors", "text.safetensors"):
        with pytest.raises(UserError, match="not written by fedvlp"):
            read_tensors(tmp_path / name, None)
    with pytest.raises(UserError, match="No file"):
        read_tensors(tmp_path / "missing.safetensors")
    for header in ({}, {"kind": "client"}):
        with pytest.raises(UserError, match="is not a file of the kind prompts or checkpoint"):
            check_header(tmp_path, header, "prompts", "checkpoint")
