"""Safetensors files of named tensors with a JSON header: written atomically, read without unpickling."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError, safe_open

from fedvlp.utils.errors import UserError
from fedvlp.utils.files import atomic_write

if TYPE_CHECKING:
    from torch import Tensor

METADATA_KEY = "fedvlp"
"""Key of the digest and the JSON header, one string, in safetensors' metadata."""
DIGEST = re.compile(rb'^.{8}{"__metadata__":{"fedvlp":"([^{]{64})', re.DOTALL)
"""The beginning of a file: 8 bytes of length, then the SHA-256 digest of all other bytes."""
NO_DIGEST = b"0" * 64


def write_tensors(path: Path, tensors: dict[str, Tensor], header: Mapping[str, Any], is_durable: bool = True) -> None:
    """Write tensors and a JSON header to a safetensors file, atomically.

    Equal content gives equal bytes, because the header is a single sorted entry. The file begins with a digest of all
    other bytes. With ``is_durable`` the function waits until the file would survive a power failure. An OSError names
    the path.
    """
    # Imported here, so that headers and arrays can be read without PyTorch.
    import torch
    from safetensors.torch import save

    # Copied, because safetensors rejects tensors that share memory, such as views of one tensor.
    in_order = torch.contiguous_format
    copies = {name: value.detach().cpu().clone(memory_format=in_order) for name, value in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        content = save(copies, {METADATA_KEY: NO_DIGEST.decode() + json.dumps(header, sort_keys=True)})
        temporary.write_bytes(_append_digest(content))
        # Before renaming, because otherwise a power failure may leave an empty file with the final name.
        if is_durable:
            make_durable(temporary)


def make_durable(path: Path) -> None:
    """Wait until the content of a file would survive a power failure."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def read_tensors(
    path: Path, group: str | None = "", framework: Literal["pt", "numpy"] = "pt"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the JSON header and the tensors of a group from a file of :func:`write_tensors`.

    A group is a prefix of tensor names. An empty group reads all tensors, and None only the header. The digest is
    checked whenever tensors are read. With the framework "numpy" the tensors are arrays, and PyTorch is not imported.
    Raises UserError if the file is missing, damaged or written by another program.
    """
    if not path.is_file():
        raise UserError(f"No file {path}. Pass a run's checkpoints/*.safetensors or prompts.safetensors.")
    try:
        if group is not None:
            _check_digest(path)
        with safe_open(path, framework) as file:
            names = [] if group is None else [name for name in file.keys() if name.startswith(group)]  # noqa: SIM118
            tensors = {name: file.get_tensor(name) for name in names}
            # Copied, because safetensors maps the file into memory, and a run may replace the file.
            if framework == "pt":
                tensors = {name: value.clone() for name, value in tensors.items()}
            header: dict[str, Any] = json.loads(file.metadata()[METADATA_KEY][len(NO_DIGEST) :])
    except OSError as error:
        raise UserError(f"Can't read {path}: {error.strerror or error}.") from error
    except (SafetensorError, AttributeError, TypeError, KeyError, ValueError) as error:
        raise UserError(
            f"{path} is damaged, or not written by fedvlp ({type(error).__name__}: {error}). Use an earlier "
            "checkpoint, or copy the file again."
        ) from error
    return tensors, header


def _append_digest(content: bytes) -> bytes:
    start = content.index(NO_DIGEST)
    before, after = memoryview(content)[:start], memoryview(content)[start + len(NO_DIGEST) :]
    digest = hashlib.sha256(before)
    digest.update(after)
    return b"".join([before, digest.hexdigest().encode(), after])


def _check_digest(path: Path) -> None:
    with open(path, "rb") as file:
        beginning = file.read(128)
        match = DIGEST.match(beginning)
        if match is None:
            raise ValueError("it has no digest")
        digest = hashlib.sha256(beginning.replace(match[1], b"", 1))
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest().encode() != match[1]:
        raise ValueError("its content does not match the digest in its header")


def check_header(path: Path, header: Mapping[str, Any], *kinds: str) -> str:
    """Get a file's kind; raise UserError if it is not one of the expected kinds."""
    kind = str(header.get("kind"))
    if kind not in kinds:
        raise UserError(f"{path} is not a file of the kind {' or '.join(kinds)}. Pass a file from a run folder.")
    return kind
