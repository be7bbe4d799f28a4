"""Safetensors files of named tensors with a JSON header: written whole or not at all, read without unpickling.

The file's metadata is one text: a checksum, then JSON with the header and a digest of each group of tensors. The
checksum is over all bytes before the tensors, as if its own digits were zeros, so it covers the header, the digests,
and the tensors' names, types, shapes and places. The digests cover the tensors' bytes. So a header is checked without
reading any tensor, and a group without reading the others.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from fedvlp.utils.errors import UserError
from fedvlp.utils.files import atomic_write
from fedvlp.utils.json_text import parse_json

Tensors = dict[str, torch.Tensor]

MAX_HEADER_BYTES = 100_000_000  # as many as safetensors allows
MAX_TENSORS = 1_000_000
LENGTH_BYTES = 8  # before safetensors' own header, of which they are the length
START = b'{"__metadata__":{"fedvlp":"'
"""How safetensors' own header begins; the checksum follows."""
UNSEALED = "0" * 64
"""Stands in the place of the checksum while that is computed."""


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

    Raises:
        OSError: with the path, if the disk is full or refuses.
    """
    unshared = _unshared(tensors)
    text = json.dumps({"digests": _digests(unshared), "header": header}, sort_keys=True)
    content = save(unshared, {"fedvlp": UNSEALED + text})
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        with open(temporary, "wb") as file:
            file.writelines(_sealed(content))
        if is_durable:
            make_durable(temporary)


def make_durable(path: Path) -> None:
    """Waits until what was written to a file would survive a power failure."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def read_tensors(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Returns the tensors and the JSON header of a file that :func:`write_tensors` wrote.

    Raises:
        UserError: if the file is missing, or differs in one bit from what was written; nothing is ever unpickled.
    """
    return _read(path, lambda group: True)


def read_header(path: Path) -> dict[str, Any]:
    """Returns the JSON header alone; raises as :func:`read_tensors` does, but not for the tensors' bytes."""
    return _read(path, lambda group: False)[1]


def read_group(path: Path, group: str) -> Tensors:
    """Returns the tensors under ``group/`` alone; raises as :func:`read_tensors` does for them and the header."""
    return strip_prefix(_read(path, lambda each: each == group)[0], group)


class _DamagedError(Exception):
    """Says what is wrong with a file."""


def _read(path: Path, is_wanted: Callable[[str], bool]) -> tuple[Tensors, dict[str, Any]]:
    """Returns the tensors of some groups, and the header."""
    if not path.is_file():
        raise UserError(f"No file {path}. Pass a run's checkpoints/*.safetensors or prompts.safetensors.")
    cause: Exception
    try:
        _check_before_tensors(path)
        return _load(path, is_wanted)
    except OSError as error:
        raise UserError(f"Can't read {path}: {error.strerror}.") from error
    except _DamagedError as error:
        problem = str(error)
        cause = error
    except Exception as error:  # the checksum is no secret, so the rest may be anything, and raise anything
        problem = f"it can't be understood ({type(error).__name__})"
        cause = error
    raise UserError(
        f"{path} is damaged, or not written by fedvlp: {problem}. Use an earlier checkpoint, or copy the file again."
    ) from cause


def _load(path: Path, is_wanted: Callable[[str], bool]) -> tuple[Tensors, dict[str, Any]]:
    """Returns tensors and header of a file of which only the checksum is known to be right."""
    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
        if len(names) > MAX_TENSORS:
            raise _DamagedError(f"it has more than {MAX_TENSORS} tensors")
        sealed = parse_json(file.metadata()["fedvlp"][len(UNSEALED) :])
        expected = {group: value for group, value in sealed["digests"].items() if is_wanted(group)}
        # Copies come after the comparison, since a copy of truth values mends those that are neither 0 nor 1.
        mapped = {name: file.get_tensor(name) for name in names if is_wanted(_group(name))}
        if _digests(mapped) != expected:
            raise _DamagedError("the checksum of its tensors is another")
        tensors = {name: value.clone() for name, value in mapped.items()}
    header: dict[str, Any] = sealed["header"]
    if not isinstance(header, dict):
        raise _DamagedError("its header is no JSON object")
    return tensors, header


def _check_before_tensors(path: Path) -> None:
    """Compares the checksum with all that stands before the tensors, of which nothing is parsed yet."""
    with open(path, "rb") as file:
        length = file.read(LENGTH_BYTES)
        announced = int.from_bytes(length, "little")
        if announced > min(os.fstat(file.fileno()).st_size - LENGTH_BYTES, MAX_HEADER_BYTES):
            raise _DamagedError("it is cut short, or its header is too long")
        content = length + file.read(announced)
    start = LENGTH_BYTES + len(START)
    if content[LENGTH_BYTES:start] != START:
        raise _DamagedError("it has no checksum")
    if content[start : start + len(UNSEALED)] != _checksum(content):
        raise _DamagedError("the checksum of its header is another")


def _sealed(content: bytes) -> list[bytes | memoryview]:
    """Returns a file's content in parts, with the checksum in its place.

    Raises:
        RuntimeError: if safetensors began its header in another way.
    """
    start = LENGTH_BYTES + len(START)
    if content[LENGTH_BYTES:start] != START:
        raise RuntimeError("safetensors writes headers in another way than this version of fedvlp expects.")
    end = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    before_tensors = content[:end]
    return [
        before_tensors[:start],
        _checksum(before_tensors),
        before_tensors[start + len(UNSEALED) :],
        memoryview(content)[end:],
    ]


def _checksum(before_tensors: bytes) -> bytes:
    """Returns the hexadecimal SHA-256 of all before the tensors, with zeros in the checksum's own place."""
    start = LENGTH_BYTES + len(START)
    digest = hashlib.sha256(before_tensors[:start] + UNSEALED.encode())
    digest.update(before_tensors[start + len(UNSEALED) :])
    return digest.hexdigest().encode()


def _digests(tensors: Tensors) -> dict[str, str]:
    """Returns the SHA-256 of the bytes of each group's tensors in the order of their names.

    Where one tensor ends and the next begins is not hashed: types and shapes are, before the tensors.
    """
    digests: dict[str, Any] = {}
    for name in sorted(tensors):
        digest = digests.setdefault(_group(name), hashlib.sha256())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy())
    return {group: digest.hexdigest() for group, digest in digests.items()}


def _group(name: str) -> str:
    """Returns what stands before the first slash; empty if there is none."""
    return name.partition("/")[0] if "/" in name else ""


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
