"""Safetensors files of named tensors with a JSON header: written whole or not at all, read without unpickling."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedvlp.utils.errors import UserError
from fedvlp.utils.files import atomic_write

Tensors = dict[str, torch.Tensor]


def add_prefix(tensors: Tensors, group: str) -> Tensors:
    """Returns the tensors under ``group/``.

    >>> add_prefix({"prompt": torch.zeros(1)}, "3")
    {'3/prompt': tensor([0.])}
    """
    return {f"{group}/{name}": value for name, value in tensors.items()}


def strip_prefix(tensors: Tensors, group: str) -> Tensors:
    """Returns those of the tensors that are under ``group/``, without that prefix.

    >>> strip_prefix({"3/prompt": torch.zeros(1), "30/prompt": torch.ones(1)}, "3")
    {'prompt': tensor([0.])}
    """
    start = f"{group}/"
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def write_tensors(path: Path, tensors: Tensors, header: Mapping[str, Any], is_durable: bool = True) -> None:
    """Writes tensors and a JSON header to a safetensors file, in one step that can't be seen half done.

    Equal content gives equal bytes: the header is a single sorted entry.

    Args:
        path: the file.
        tensors: what it is to hold.
        header: what JSON can hold.
        is_durable: whether to wait until it would survive a power failure.
    """
    text = json.dumps(header, sort_keys=True, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        save_file(_unshared(tensors), temporary, metadata={"fedvlp": text})
        if is_durable:
            make_durable(temporary)


def make_durable(path: Path) -> None:
    """Waits until what was written to a file would survive a power failure."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def read_tensors(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Returns the tensors and the JSON header of a file that :func:`write_tensors` wrote.

    Raises:
        UserError: if the file is missing or damaged; nothing is ever unpickled.
    """
    with _opened(path) as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        return tensors, _header(file)


def read_header(path: Path) -> dict[str, Any]:
    """Returns the JSON header alone; raises as :func:`read_tensors` does."""
    with _opened(path) as file:
        return _header(file)


def read_group(path: Path, group: str) -> Tensors:
    """Returns the tensors under ``group/`` alone; raises as :func:`read_tensors` does."""
    with _opened(path) as file:
        names = [name for name in file.keys() if name.startswith(group + "/")]  # noqa: SIM118
        return strip_prefix({name: file.get_tensor(name).clone() for name in names}, group)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise UserError(f"No file {path}. Pass a run's checkpoints/*.safetensors or prompts.safetensors.")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is damaged or no safetensors file ({error}). Use an earlier checkpoint.") from error


def _header(file: Any) -> dict[str, Any]:
    header: dict[str, Any] = json.loads((file.metadata() or {}).get("fedvlp", "{}"))
    return header


def _unshared(tensors: Tensors) -> Tensors:
    """Returns the tensors on the CPU, none of which shares its memory with another or is a view of a larger one.

    safetensors refuses shared memory, and would write all of a larger one's bytes.
    """
    seen: set[int] = set()
    unshared: Tensors = {}
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        is_alone = value.untyped_storage().nbytes() == value.nbytes and value.data_ptr() not in seen
        unshared[name] = value if is_alone else value.clone()
        seen.add(unshared[name].data_ptr())
    return unshared
