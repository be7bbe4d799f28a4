"""What a frozen image tower computes: once for each image, kept on disk under all that it depends on."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import PIL
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from fedvlp.data.files.images import Images, Indices, Transform
from fedvlp.data.loading.loaders import ImageDataset, image_loader
from fedvlp.utils.files import write_cache_file

Prepare = Callable[[Float[Tensor, "B 3 height width"]], dict[str, Tensor]]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Features:
    """What was computed of some images of one domain.

    Attributes:
        tensors: [images, ...] by name.
        seconds: what computing took, now or when they were kept.
        is_cached: whether they were read and not computed.
    """

    tensors: dict[str, Tensor]
    seconds: float
    is_cached: bool = False


def encode(
    dataset: ImageDataset,
    prepare: Prepare,
    device: torch.device,
    num_workers: int = 0,
    description: str = "encoding",
    batch_size: int = 64,
) -> dict[str, Tensor]:
    """Returns what ``prepare`` gives for these images, [images, ...] by name, on ``device``.

    Batches are cut in the order of the images and have their own size, so that the numbers do not depend on how clients
    or evaluations are batched.

    Raises:
        ValueError: if ``prepare`` does not give one row an image.
    """
    whole: dict[str, Tensor] = {}
    loader, done = image_loader(dataset, batch_size, num_workers, device=device), 0
    bar = tqdm(total=len(dataset), desc=description, unit="image", leave=False, disable=None)
    # Tensors made under inference mode could not be trained on.
    with bar, torch.inference_mode(False), torch.no_grad():
        for pixels, _ in loader:
            for name, value in prepare(pixels.to(device, non_blocking=loader.pin_memory)).items():
                if len(value) != len(pixels):
                    raise ValueError(f"Expected `prepare` to give {len(pixels)} rows of {name!r}; got {len(value)}.")
                if name not in whole:
                    whole[name] = torch.empty(len(dataset), *value.shape[1:], dtype=value.dtype, device=device)
                whole[name][done : done + len(value)] = value
            done += len(pixels)
            bar.update(len(pixels))
        return whole


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
            about = file.metadata() or {}
            seconds = float(about.get("seconds", 0))
    except (SafetensorError, OSError, ValueError) as error:
        log.warning("The cached features %s can't be read (%s); computing them again.", path, error)
        return None
    if about.get("checksum") != _checksum(tensors) or any(len(tensor) != count for tensor in tensors.values()):
        log.warning("The cached features %s are damaged; computing them again.", path)
        return None
    return Features({name: tensor.to(device) for name, tensor in tensors.items()}, seconds, is_cached=True)


def save_features(path: Path, features: Features) -> None:
    """Writes features in one step, with the checksum that ``load_features`` asks for."""
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in features.tensors.items()}
    metadata = {"checksum": _checksum(kept), "seconds": f"{features.seconds:.3f}"}
    write_cache_file(path, lambda temporary: save_file(kept, temporary, metadata=metadata))


def _checksum(tensors: dict[str, Tensor]) -> str:
    """Returns a checksum of names, shapes and numbers."""
    value = 0
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.contiguous().view(torch.uint8).numpy().data, value)
    return f"{value:08x}"
