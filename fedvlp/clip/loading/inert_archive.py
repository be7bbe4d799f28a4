"""What PyTorch saved, read as data: nothing that an archive names is imported, and nothing in it is run.

An archive is a zip file of a pickle and the numbers beside it. Here the pickle makes tensors, dicts, lists, numbers and
texts; of every other class it makes an :class:`Inert`, whatever that class is called. TorchScript's code, which lies in
the archive as text, is not looked at.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedvlp.utils.errors import UserError

STORAGES = {
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "BoolStorage": torch.bool,
}
"""PyTorch's names of tensors' numbers in a file."""


class Inert:
    """Stands for an object of a class that is not looked up.

    Attributes:
        state: what the archive holds of it, such as a dict of its attributes; None for nothing.
    """

    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        """Takes what the class would be called with, and does nothing with it."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Is called for classes that are dicts."""

    def append(self, value: Any) -> None:
        """Is called for classes that are lists."""

    def extend(self, values: Any) -> None:
        """Is called for classes that are lists."""


class _Dict(dict[Any, Any]):
    """A dict for PyTorch's OrderedDict, without the attributes that it may have."""

    def __setstate__(self, state: Any) -> None:
        """Takes nothing."""


class _Rebuild:
    """Makes a tensor of numbers; an object without attributes, so that a pickle can't change it."""

    __slots__ = ()

    def __call__(self, numbers: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
        if math.prod(size) > len(numbers):  # a stride of 0 would make a tensor of any size of one number
            raise ValueError("a tensor has more elements than there are numbers")
        return torch.as_strided(numbers, size, stride, offset).clone()


class _Parameter:
    """Returns a parameter's tensor."""

    __slots__ = ()

    def __call__(self, data: Tensor, *_: Any) -> Tensor:
        return data


class _Unpickler(pickle.Unpickler):
    """Makes tensors, plain containers and :class:`Inert` objects."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(_content(archive, f"{root}/data.pkl")))
        self._archive = archive
        self._root = root
        self._numbers: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Returns what stands for a name; never imports."""
        if module == "torch" and name in STORAGES:
            return type(name, (Inert,), {"dtype": STORAGES[name]})
        known = {
            ("collections", "OrderedDict"): _Dict,
            ("torch._utils", "_rebuild_tensor_v2"): _Rebuild(),
            ("torch._utils", "_rebuild_parameter"): _Parameter(),
        }
        return known.get((module, name), type("Inert", (Inert,), {}))

    def persistent_load(self, pid: Any) -> Tensor:
        """Returns the numbers that a tensor is made of."""
        _, kind, key, *_ = pid
        if key not in self._numbers:
            content = bytearray(_content(self._archive, f"{self._root}/data/{key}"))
            self._numbers[key] = torch.frombuffer(content, dtype=kind.dtype) if content else torch.empty(0)
        return self._numbers[key]


def read_inert(path: Path) -> Any:
    """Returns what an archive of ``torch.save`` or of TorchScript holds, without running anything in it.

    Raises:
        UserError: if it is none, is damaged, or is of PyTorch before 1.6.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            root = archive.namelist()[0].partition("/")[0]
            if f"{root}/byteorder" in archive.namelist() and _content(archive, f"{root}/byteorder") != b"little":
                raise ValueError("its numbers are in another byte order")
            return _Unpickler(archive, root).load()
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle raises nearly every type
        raise UserError(
            f"{path} cannot be read as an archive of PyTorch ({type(error).__name__}: {error}). Copy it again; a file "
            "of PyTorch before 1.6 has to be loaded and saved by a newer one where you trust it."
        ) from error


def module_tensors(root: Any) -> dict[str, Tensor]:
    """Returns the tensors of a module that TorchScript saved, by the names that its state dict would have."""
    found: dict[str, Tensor] = {}
    waiting = [("", root)]
    while waiting:
        prefix, module = waiting.pop()
        state = module.state if isinstance(module, Inert) else None
        for name, value in state.items() if isinstance(state, Mapping) else ():
            if isinstance(value, Tensor):
                found[f"{prefix}{name}"] = value
            elif isinstance(value, Inert):
                waiting.append((f"{prefix}{name}.", value))
    return found


def _content(archive: zipfile.ZipFile, name: str) -> bytes:
    """Returns an entry, which PyTorch never compresses: a compressed one may be of any size."""
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    return archive.read(entry)
