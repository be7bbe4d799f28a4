"""Features that frozen parts computed, kept on disk under a hash of all that they depend on."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

import PIL
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedvlp.data.files.images import Images, Indices, Transform
from fedvlp.utils.files import write_cache_file

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Features:
    """What the frozen parts of a module computed of some images of one domain.

    Attributes:
        tensors: [images, ...] by name.
        seconds: how long computing them took, now or when the file was written.
        is_cached: whether they were read from the cache.
    """

    tensors: dict[str, Tensor]
    seconds: float
    is_cached: bool = False


def cache_key(key: str, transform: Transform, images: Images, rows: Indices, device: torch.device) -> str:
    """Returns the hash of all that features depend on.

    These are weights, options and code (``key``), the transform, the images, the kind of device, and the versions that
    may round otherwise.
    """
    # Functions inside a transform print their address, which differs from process to process.
    shown = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(transform))
    text = json.dumps([key, shown, images.fingerprint(rows), device.type, torch.__version__, PIL.__version__])
    return hashlib.sha256(text.encode()).hexdigest()


def load_features(path: Path, count: int, device: torch.device) -> Features | None:
    """Reads cached features onto ``device``; None if there are none or they are damaged.

    On the CPU they are mapped, not copied: the system reads what is used, and may forget it when memory is short.

    Args:
        path: a file that ``save_features`` wrote.
        count: rows that every tensor must have.
        device: where they are wanted.
    """
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            metadata = file.metadata() or {}
            seconds = float(metadata.get("seconds", 0))
    except (SafetensorError, OSError, ValueError) as error:
        log.warning("The cached features %s can't be read (%s); computing them again.", path, error)
        return None
    is_whole = metadata.get("checksum") == _checksum(tensors)
    if not (is_whole and all(len(tensor) == count for tensor in tensors.values())):
        log.warning("The cached features %s are damaged; computing them again.", path)
        return None
    return Features({name: tensor.to(device) for name, tensor in tensors.items()}, seconds, is_cached=True)


def save_features(path: Path, features: Features) -> None:
    """Writes features in one step, with the checksum that ``load_features`` asks for."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in features.tensors.items()}
    metadata = {"checksum": _checksum(tensors), "seconds": f"{features.seconds:.3f}"}
    write_cache_file(path, lambda temporary: save_file(tensors, temporary, metadata=metadata))


def _checksum(tensors: dict[str, Tensor]) -> str:
    """Covers names, types, shapes and numbers."""
    value = 0
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.contiguous().view(torch.uint8).numpy().data, value)
    return f"{value:08x}"
