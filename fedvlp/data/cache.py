"""What is computed once for each image and kept on disk: decoded images, and features of frozen parts."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedvlp.data.files.images import FolderImages, Images, Indices, Transform, in_threads
from fedvlp.utils.files import atomic_write, free_bytes, locked, size_in_words, write_cache_file

log = logging.getLogger(__name__)
COMPOSE = "torchvision.transforms.transforms.Compose"
# By name, since these classes need not be imported to be recognised.
FIXED_TRANSFORMS = frozenset({
    "torchvision.transforms.transforms.Resize", "torchvision.transforms.transforms.CenterCrop",
    "open_clip.transform.MaybeConvertMode", "open_clip.transform.ResizeKeepRatio",
    "open_clip.transform.CenterCropOrPad",
})  # fmt: skip


def fixed_steps(transform: Any) -> tuple[Any, Transform] | None:
    """Returns the fixed first steps of a ``torchvision.transforms.Compose``, and what is left of it.

    The steps go from a PIL image to one of a size that is always the same: CLIP's own resize the shorter side and cut
    out the centre. None if it does not begin with such.
    """
    if _class_path(transform) != COMPOSE:
        return None
    # The first step that is drawn, or gives a tensor, ends what can be kept.
    steps = list(transform.transforms)
    count = next((i for i, step in enumerate(steps) if _class_path(step) not in FIXED_TRANSFORMS), len(steps))
    first = type(transform)(steps[:count])
    # One wide and one tall image show whether all images come out in one size.
    sizes = {first(Image.new("RGB", size)).size for size in ((96, 64), (64, 96))}
    return (first, type(transform)(steps[count:])) if len(sizes) == 1 else None


def _class_path(step: Any) -> str:
    return f"{type(step).__module__}.{type(step).__qualname__}"


def _settings(steps: Any) -> list[Any]:
    """All settings of the steps of a transform, of which their own ``repr`` leaves some out."""
    settings = []
    for step in steps.transforms:
        public = sorted((name, repr(value)) for name, value in vars(step).items() if not name.startswith("_"))
        settings.append([_class_path(step), public])
    return settings


class DecodedImages:
    """Images of one domain after the fixed first steps of a transform, in one file: uint8 [N, H, W, 3].

    Args:
        images: the files, of which it takes the labels.
        rows: which of them are in the file, ascending.
        steps: the fixed first steps of a transform, as of ``fixed_steps``.
        folder: where the file is; its name is a digest of all that its content depends on.
    """

    def __init__(self, images: FolderImages, rows: Indices, steps: Any, folder: Path) -> None:
        self.images = images
        self.rows = rows
        self.steps = steps
        self.labels = images.labels[rows]
        # All images come out in the size of this one, as `fixed_steps` checks.
        width, height = steps(Image.new("RGB", (64, 64))).size
        self.shape = (len(rows), height, width, 3)
        text = json.dumps([_settings(steps), PIL.__version__, images.fingerprint(rows)])
        self.path = folder / f"{hashlib.sha256(text.encode()).hexdigest()}.npy"
        self._pixels: NDArray[np.uint8] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the open file to each process, which would otherwise be sent all pixels."""
        return {**self.__dict__, "_pixels": None}

    def __getitem__(self, index: int) -> Image.Image:
        """Returns one image in 8-bit RGB after the steps."""
        # Opened by whoever reads first: each worker maps the file itself.
        if self._pixels is None:
            self._pixels = np.load(self.path, mmap_mode="r")
        return Image.fromarray(self._pixels[index])

    def make(self, description: str) -> bool:
        """Decodes all images into the file unless it is there, and returns whether it is; a full disk only warns."""
        # Processes that start together decode images once: the others wait.
        with locked(self.path):
            if self.path.is_file():
                return True
            size = int(np.prod(self.shape))
            # Whoever gives away gigabytes of a disk should read about it.
            level = logging.WARNING if size > 1e9 else logging.INFO
            log.log(level, "Keeping %s of decoded images in %s.", size_in_words(size), self.path.parent)
            try:
                # A full disk would kill the process that writes to mapped memory, so the room is asked for before.
                if size > (free := free_bytes(self.path)):
                    raise OSError(errno.ENOSPC, f"{size_in_words(size)} are needed, {size_in_words(free)} are free")
                # Renamed when all images are in it, so a file that is there is whole.
                with atomic_write(self.path) as temporary:
                    pixels = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=self.shape)

                    def decode(index: int) -> None:
                        pixels[index] = np.asarray(self.steps(self.images[int(self.rows[index])]))

                    in_threads(decode, range(len(self.rows)), description)
                    pixels.flush()
            except OSError as error:
                advice = "files are decoded each time. Give data.cache_dir more room, or pass data.cache_images=false."
                reason = error.strerror or error
                log.warning("Could not keep decoded images in %s (%s); %s", self.path.parent, reason, advice)
                return False
            return True


def cache_key(key: str, transform: Transform, images: Images, rows: Indices, device: torch.device) -> str:
    """Returns the hash of all that features depend on.

    These are weights, options and code (``key``), the transform, the images, the kind of device, and the versions that
    may round otherwise.
    """
    # Functions inside a transform print their address, which differs from process to process.
    shown = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(transform))
    text = json.dumps([key, shown, images.fingerprint(rows), device.type, torch.__version__, PIL.__version__])
    return hashlib.sha256(text.encode()).hexdigest()


def cached_features(path: Path, device: torch.device, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the features [images, ...] in a file, by name; computes and writes them if need be.

    On the CPU they are mapped, not copied: the system reads what is used, and may forget it when memory is short.
    """
    # Processes that start together compute features once: the others wait and read the file.
    with locked(path):
        features = load_features(path, device)
        if features is not None:
            return features
        features = compute()
        # safetensors refuses views, and tensors on a GPU.
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in features.items()}
        write_cache_file(path, lambda temporary: save_file(tensors, temporary))
        # Read again on the CPU, so that the tensors are mapped from the file and do not fill the memory.
        mapped = load_features(path, device) if device.type == "cpu" else None
        return features if mapped is None else mapped


def load_features(path: Path, device: torch.device) -> dict[str, Tensor] | None:
    """Reads features onto ``device``; None if there are none or the file is damaged."""
    if not path.is_file():
        return None
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        log.warning("The cached features %s can't be read (%s); computing them again.", path, error)
        return None
    return {name: tensor.to(device) for name, tensor in tensors.items()}
