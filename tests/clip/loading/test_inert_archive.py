"""Archives of PyTorch, read without running what they name; and archives made to do harm."""

from __future__ import annotations

import io
import pickle
import zipfile

import pytest
import torch

from fedvlp.clip.loading.inert_archive import Inert, read_inert
from fedvlp.utils.errors import UserError


class Trap:
    """An object that writes a file where it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def forged(path, pickled, numbers=b"\0" * 8, compression=zipfile.ZIP_STORED):
    """An archive of a pickle that torch would not have written."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/data/0", numbers)
    return path


def tensor_pickle(size, stride, offset=0):
    """The pickle of a tensor of two numbers in single precision, of any size and strides."""
    file = io.BytesIO()
    pickler = pickle._Pickler(file, 2)
    pickler.persistent_id = lambda value: (
        ("storage", torch.FloatStorage, "0", "cpu", 2) if value is tensor_pickle else None
    )
    pickler.dump(Call(torch._utils._rebuild_tensor_v2, (tensor_pickle, offset, size, stride, False, None)))
    return file.getvalue()


class Call:
    def __init__(self, function, arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def test_tensors_and_plain_values_are_read_and_the_rest_is_inert(tmp_path):
    numbers = torch.arange(12.0).reshape(3, 4)
    content = {
        "turned": numbers.t(),
        "part": numbers[1:, 2],
        "half": torch.tensor(1.5, dtype=torch.float16),
        "parameter": torch.nn.Parameter(numbers),
        "none": torch.empty(0, 3),
        "epoch": 50,
        "scheduler": {"successor": torch.optim.lr_scheduler.StepLR(torch.optim.SGD([numbers], 0.1), 2)},
        "trap": Trap(tmp_path / "sprung"),
    }
    torch.save(content, tmp_path / "w.pth.tar-50")
    found = read_inert(tmp_path / "w.pth.tar-50")
    for name in ("turned", "part", "half", "parameter", "none"):
        assert found[name].dtype == content[name].dtype
        assert torch.equal(found[name], content[name])
    assert found["epoch"] == 50
    assert isinstance(found["scheduler"]["successor"], Inert)
    assert isinstance(found["trap"], Inert)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [((3,), (1,), 0), ((10**12,), (0,), 0), ((2,), (1,), 1), ((2,), (2,), 0), ((1,), (1,), -1)],
)
def test_a_tensor_beyond_its_numbers_is_refused(tmp_path, size, stride, offset):
    path = forged(tmp_path / "w.pt", tensor_pickle(size, stride, offset))
    with pytest.raises(UserError, match="cannot be read as an archive of PyTorch"):
        read_inert(path)
    assert torch.equal(read_inert(forged(tmp_path / "v.pt", tensor_pickle((2,), (1,)))), torch.zeros(2))


def test_an_entry_that_is_compressed_is_refused(tmp_path):
    path = forged(tmp_path / "w.pt", tensor_pickle((2,), (1,)), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match=r"data\.pkl is compressed"):
        read_inert(path)


@pytest.mark.parametrize(
    "pickled",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",  # a call gives an inert object
        b"cposix\nsystem\n(S'true'\ntR.",
        b"ccollections\nOrderedDict\n)R}S'keys'\nI1\nsb.",  # attributes of a dict are left out
    ],
)
def test_what_is_named_is_not_looked_up(tmp_path, pickled):
    assert isinstance(read_inert(forged(tmp_path / "w.pt", pickled)), (Inert, dict))


@pytest.mark.parametrize(
    "pickled",
    [
        b"ctorch._utils\n_rebuild_tensor_v2\n}S'x'\nI1\nsb.",  # to change a function of ours
        b"ctorch._utils\n_rebuild_tensor_v2\n(N}S'__call__'\nI1\nstb.",
        b"cbuiltins\neval\n}S'__call__'\nI1\nsb.",  # or a class
        b"\x80\x02}q\x00",
        b"",
    ],
)
def test_what_would_change_us_is_refused(tmp_path, pickled):
    with pytest.raises(UserError, match="cannot be read as an archive of PyTorch"):
        read_inert(forged(tmp_path / "w.pt", pickled))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02]q\x00."])
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(UserError, match="Copy it again"):
        read_inert(tmp_path / "w.pt")
