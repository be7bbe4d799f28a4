"""Files of tensors: no bit of them can change unseen, and equal content gives equal bytes."""

from __future__ import annotations

import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedvlp.utils import tensor_files
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import read_group, read_header, read_tensors, write_tensors

HEADER = {"kind": "made up", "Straße\n": [1, None, "\udcff"], "deep": {"a": 0.5}}


def tensors():
    generator = torch.Generator().manual_seed(5)
    return {
        "personal/2/bias": torch.randn(3, 5, generator=generator),
        "personal/0/bias": torch.randn(2, generator=generator).half(),
        "optimizer/0/step": torch.tensor(7.0),
        "empty": torch.zeros(0, 4),
        "seen": torch.tensor([True, False]),
        "prompt": torch.randn(4, 6, generator=generator).mT,  # not in the order of its memory
    }


@pytest.fixture
def path(tmp_path):
    write_tensors(tmp_path / "made.safetensors", tensors(), HEADER)
    return tmp_path / "made.safetensors"


def flipped(content, bit):
    """The content with one bit the other way round."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def length_of_header(content):
    return 8 + int.from_bytes(content[:8], "little")


def test_what_is_written_is_read(path):
    found, header = read_tensors(path)
    assert header == read_header(path) == HEADER
    assert found.keys() == tensors().keys()
    for name, value in tensors().items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
    assert torch.equal(read_group(path, "personal")["2/bias"], tensors()["personal/2/bias"])
    assert list(read_group(path, "optimizer")) == ["0/step"]
    assert read_group(path, "person") == {}


def test_equal_content_gives_equal_bytes(path, tmp_path):
    backwards = dict(reversed(tensors().items()))
    write_tensors(tmp_path / "again.safetensors", backwards, dict(reversed(HEADER.items())))
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_others_can_read_it(path):
    assert torch.equal(load_file(path)["personal/2/bias"], tensors()["personal/2/bias"])


def test_no_bit_before_the_tensors_changes_unseen(path):
    content = path.read_bytes()
    generator = random.Random(7)
    bits = 8 * length_of_header(content)
    for bit in {*range(64), *generator.sample(range(bits), 300), *range(bits - 64, bits)}:
        path.write_bytes(flipped(content, bit))
        with pytest.raises(UserError, match="is damaged"):
            read_header(path)


def test_no_bit_of_the_tensors_changes_unseen(path):
    content = path.read_bytes()
    for bit in range(8 * length_of_header(content), 8 * len(content), 3):
        path.write_bytes(flipped(content, bit))
        with pytest.raises(UserError, match="the checksum of its tensors"):
            read_tensors(path)
    assert read_header(path) == HEADER


def test_a_group_is_read_where_another_is_damaged(path):
    content = path.read_bytes()
    damaged = content.replace(tensors()["personal/2/bias"].numpy().tobytes(), bytes(60))
    assert damaged != content
    path.write_bytes(damaged)
    assert read_group(path, "optimizer")["0/step"] == 7
    with pytest.raises(UserError, match="is damaged"):
        read_group(path, "personal")


def test_cut_or_longer_files_are_damaged(path):
    content = path.read_bytes()
    generator = random.Random(3)
    for length in (0, 1, 7, 8, 9, len(content) - 1, *generator.sample(range(len(content)), 20)):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match="is damaged"):
            read_tensors(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(UserError, match="is damaged"):
        read_tensors(path)


def test_a_huge_length_is_not_allocated(path):
    path.write_bytes((2**62).to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(UserError, match="header is too long"):
        read_header(path)


@pytest.mark.parametrize("metadata", [None, {"other": "x"}, {"fedvlp": "{}"}, {"fedvlp": "0" * 64 + "{}"}])
def test_a_file_without_checksum_is_refused(tmp_path, metadata):
    save_file({"prompt": torch.zeros(2)}, tmp_path / "plain.safetensors", metadata)
    with pytest.raises(UserError, match="not written by fedvlp"):
        read_header(tmp_path / "plain.safetensors")


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{}", '{"digests": 1, "header": {}}', '{"digests": {}, "header": 3}']
)
def test_a_right_checksum_over_something_else_is_refused(tmp_path, text):
    content = tensor_files.save({}, {"fedvlp": tensor_files.UNSEALED + text})
    (tmp_path / "odd.safetensors").write_bytes(b"".join(tensor_files._sealed(content)))
    with pytest.raises(UserError, match="not written by fedvlp"):
        read_header(tmp_path / "odd.safetensors")


def test_too_many_tensors_are_refused(path, monkeypatch):
    monkeypatch.setattr(tensor_files, "MAX_TENSORS", 5)
    with pytest.raises(UserError, match="more than 5 tensors"):
        read_tensors(path)
