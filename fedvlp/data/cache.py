"""Cache on disk for results computed once per image: decoded images, and features of frozen parts."""

import hashlib
import json
import logging
import re
from collections.abc import Callable
from functools import partial
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

from fedvlp.data.files.images import FolderImages, Images, Indices, Transform, map_in_threads
from fedvlp.utils.files import free_bytes, locked, size_in_words, write_cache_file

log = logging.getLogger(__name__)
# Names, so that these classes are recognised without importing them.
FIXED_TRANSFORMS = frozenset({
    "torchvision.transforms.transforms.Resize", "torchvision.transforms.transforms.CenterCrop",
    "open_clip.transform.MaybeConvertMode", "open_clip.transform.ResizeKeepRatio",
    "open_clip.transform.CenterCropOrPad",
})  # fmt: skip


def fixed_steps(transform: Any) -> tuple[Any, Transform] | None:
    """Split a ``torchvision.transforms.Compose`` into its fixed first steps and the rest.

    The first steps make a PIL image of fixed size, as CLIP's resize and centre crop do. None if there are none.
    """
    if _class_path(transform) != "torchvision.transforms.transforms.Compose":
        return None
    # The fixed steps end before the first step that is random or returns a tensor.
    steps = list(transform.transforms)
    count = next((i for i, step in enumerate(steps) if _class_path(step) not in FIXED_TRANSFORMS), len(steps))
    first = type(transform)(steps[:count])
    # A wide and a tall image show whether all outputs have the same size.
    sizes = {first(Image.new("RGB", size)).size for size in ((96, 64), (64, 96))}
    return (first, type(transform)(steps[count:])) if len(sizes) == 1 else None


def _class_path(step: Any) -> str:
    return f"{type(step).__module__}.{type(step).__qualname__}"


class DecodedImages:
    """Images of one domain after the fixed first steps of a transform, in one file: uint8 [N, H, W, 3].

    Args:
        images: The image files.
        rows: Positions of the decoded images, ascending.
        steps: The fixed first steps of a transform, from ``fixed_steps``.
        folder: Folder of the file. The file's name is a digest of everything that determines its content.
    """

    def __init__(self, images: FolderImages, rows: Indices, steps: Any, folder: Path) -> None:
        self.images = images
        self.rows = rows
        self.steps = steps
        self.labels = images.labels[rows]
        # All images get this size, as `fixed_steps` checks.
        width, height = steps(Image.new("RGB", (64, 64))).size
        self.shape = (len(rows), height, width, 3)
        settings = []
        for step in steps.transforms:
            # All settings, since the `repr` of steps omits some.
            public = sorted((name, repr(value)) for name, value in vars(step).items() if not name.startswith("_"))
            settings.append([_class_path(step), public])
        text = json.dumps([settings, PIL.__version__, images.fingerprint(rows)])
        self.path = folder / f"{hashlib.sha256(text.encode()).hexdigest()}.npy"
        self._pixels: NDArray[np.uint8] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Omit the open file, since its pixels would be sent to each worker."""
        return {**self.__dict__, "_pixels": None}

    def __getitem__(self, index: int) -> Image.Image:
        if self._pixels is None:
            self._pixels = np.load(self.path, mmap_mode="r")
        return Image.fromarray(self._pixels[index])

    def make(self, description: str) -> bool:
        """Decode all images into the file if it does not exist; warn and return False if the disk is full."""
        # If several processes start together, one decodes the images and the others wait.
        with locked(self.path):
            if self.path.is_file():
                return True
            size = int(np.prod(self.shape))
            level = logging.WARNING if size > 1e9 else logging.INFO
            log.log(level, "Keeping %s of decoded images in %s.", size_in_words(size), self.path.parent)
            write_cache_file(self.path, partial(self._write, size, description))
            return self.path.is_file()

    def _write(self, size: int, description: str, path: Path) -> None:
        # Writing to mapped memory kills the process if the disk is full.
        if size > (free := free_bytes(path)):
            needed = f"{size_in_words(size)} are needed, {size_in_words(free)} are free"
            raise OSError(f"{needed}: free space for data.cache_dir, or set data.cache_images=false")
        pixels = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=self.shape)

        def decode(index: int) -> None:
            pixels[index] = np.asarray(self.steps(self.images[int(self.rows[index])]))

        map_in_threads(decode, range(len(self.rows)), description)
        pixels.flush()


def cache_key(key: str, transform: Transform, images: Images, rows: Indices, device: torch.device) -> str:
    """Hash everything that determines features; ``key`` represents the module's weights and options."""
    # The `repr` of functions in a transform contains an address, which differs between processes.
    shown = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(transform))
    text = json.dumps([key, shown, images.fingerprint(rows), device.type, torch.__version__, PIL.__version__])
    return hashlib.sha256(text.encode()).hexdigest()


def cached_features(path: Path, device: torch.device, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Read the features [images, ...] in a file, by name, or compute and write them.

    On the CPU, the file is mapped rather than copied: the system reads it on use and may drop it if memory is short.
    """
    # If several processes start together, one computes the features and the others wait.
    with locked(path):
        features = load_features(path, device)
        if features is not None:
            return features
        features = compute()
        # safetensors supports neither views nor tensors on a GPU.
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in features.items()}
        write_cache_file(path, lambda temporary: save_file(tensors, temporary))
        # Read again on the CPU, so that the tensors are mapped from the file.
        mapped = load_features(path, device) if device.type == "cpu" else None
        return features if mapped is None else mapped


def load_features(path: Path, device: torch.device) -> dict[str, Tensor] | None:
    """Read features onto ``device``; None if the file does not exist or is damaged."""
    if not path.is_file():
        return None
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        log.warning("The cached features %s can't be read (%s); computing them again.", path, error)
        return None
    return {name: tensor.to(device) for name, tensor in tensors.items()}
