"""What is computed once for each image and kept on disk: decoded images, and features of frozen parts."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import re
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedvlp.data.files.images import FolderImages, Images, Indices, Transform, in_threads
from fedvlp.utils.files import atomic_write, locked, write_cache_file

COMPOSE = "torchvision.transforms.transforms.Compose"
# By name, since these classes need not be imported to be recognised.
FIXED = frozenset({
    "torchvision.transforms.transforms.Resize", "torchvision.transforms.transforms.CenterCrop",
    "open_clip.transform.MaybeConvertMode", "open_clip.transform.ResizeKeepRatio",
    "open_clip.transform.CenterCropOrPad",
})  # fmt: skip


@dataclass(frozen=True)
class FixedSteps:
    """The fixed first steps of a transform; for CLIP's own they resize the shorter side and cut out the centre.

    Attributes:
        steps: from a PIL image to a PIL image.
        rest: what is left of the transform: from there to a tensor.
        size: height and width of what the steps give.
    """

    steps: Any
    rest: Transform
    size: tuple[int, int]

    def __call__(self, image: Image.Image) -> Image.Image:
        """Returns the image after the steps."""
        return cast(Image.Image, self.steps(image))

    def describe(self) -> list[Any]:
        """Returns all settings of the steps, as JSON holds them."""
        described = []
        for step in self.steps.transforms:
            settings = sorted((name, repr(value)) for name, value in vars(step).items() if not name.startswith("_"))
            described.append([_kind(step), dict(settings)])
        return described


def fixed_steps(transform: Any) -> FixedSteps | None:
    """Returns the fixed first steps of a ``torchvision.transforms.Compose``; None if it does not begin with such."""
    if _kind(transform) != COMPOSE:
        return None
    steps = list(transform.transforms)
    count = next((i for i, step in enumerate(steps) if _kind(step) not in FIXED), len(steps))
    first = type(transform)(steps[:count])
    rest = type(transform)(steps[count:])
    # One wide and one tall image show whether all images come out in one size.
    sizes = {first(Image.new("RGB", size)).size for size in ((96, 64), (64, 96))}
    if len(sizes) > 1:  # the size follows the image's
        return None
    width, height = sizes.pop()
    return FixedSteps(first, rest, (height, width))


def _kind(step: Any) -> str:
    return f"{type(step).__module__}.{type(step).__qualname__}"


log = logging.getLogger(__name__)


class DecodedImages:
    """Image files after the fixed first steps of a transform, from disk where they are kept, else from the file.

    ``<key>.npy`` holds the images of a domain, uint8 [N, H, W, 3], as a file with holes for those that nobody wanted
    yet; ``<key>.sums`` holds a checksum for each, written after it, and 0 for a hole. So whatever ends a process, what
    it kept is whole or is not there.

    Args:
        images: the files.
        steps: the fixed first steps of the transform.
        folder: where the two files are.
    """

    def __init__(self, images: FolderImages, steps: FixedSteps, folder: Path) -> None:
        self.images = images
        self.steps = steps
        self.labels = images.labels
        self.names = images.names
        self.shape = (len(images), *steps.size, 3)
        text = json.dumps([steps.describe(), PIL.__version__, images.fingerprint(range(len(images)))])
        self.path = folder / f"{hashlib.sha256(text.encode()).hexdigest()}.npy"
        self.checksums_path = self.path.with_suffix(".sums")
        self._pixels: np.memmap[Any, Any] | None = None
        self._checksums: NDArray[np.uint32] | None = None
        self._has_warned = False

    def __len__(self) -> int:
        """Counts the images."""
        return len(self.images)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the open file to each process."""
        return {**self.__dict__, "_pixels": None, "_checksums": None}

    def __getitem__(self, row: int) -> Image.Image:
        """Returns one image in 8-bit RGB after the steps; one that is kept but damaged is decoded and kept again."""
        checksums = self._open()
        if self._pixels is None or not checksums[row]:
            return self.steps(self.images[row])
        pixels = np.array(self._pixels[row])
        if _checksum(pixels) == checksums[row]:
            return Image.fromarray(pixels)
        self._warn("Decoded images in %s are damaged; decoding them again.", self.path)
        return self._decode_again(row)

    def fingerprint(self, indices: Sequence[int] | Indices) -> str:
        """Returns that of the files."""
        return self.images.fingerprint(indices)

    @property
    def image_bytes(self) -> int:
        """The bytes of one image."""
        return int(np.prod(self.shape[1:]))

    def missing(self, rows: Indices) -> Indices:
        """Returns those rows that are not kept."""
        is_missing = self._open()[rows] == 0
        return np.asarray(rows[is_missing], dtype=np.int64)

    def fill(self, rows: Indices, workers: int, description: str) -> None:
        """Decodes and keeps those rows that are not kept yet; one process at a time.

        Raises:
            OSError: if the disk refuses.
        """
        with locked(self.path):
            self._checksums = None
            missing = self.missing(rows)  # another process may have kept them meanwhile
            if not len(missing):
                return
            if self._pixels is None:
                self._create()
            try:
                in_threads(self._keep, missing.tolist(), description, workers)
            finally:
                self._checksums = None

    def _keep(self, row: int) -> None:
        try:
            image = self.steps(self.images[row])
        except Exception:  # PIL's decoders raise nearly every type; whoever reads the image will meet it
            return
        self._write(row, np.asarray(image))

    def _decode_again(self, row: int) -> Image.Image:
        """Decodes one row and keeps it in place of what is there."""
        image = self.steps(self.images[row])
        try:
            self._write(row, np.asarray(image))
        except OSError:  # the cache may only be read
            return image
        self._open()[row] = _checksum(np.asarray(image))
        return image

    def _write(self, row: int, pixels: NDArray[np.uint8]) -> None:
        # The images are at the end of the file, after a header of NumPy's. The checksum goes last: it vouches for them.
        offset = self.path.stat().st_size - (len(self) - row) * self.image_bytes
        _overwrite(self.path, offset, pixels.tobytes())
        _overwrite(self.checksums_path, 4 * row, np.uint32(_checksum(pixels)).tobytes())

    def _open(self) -> NDArray[np.uint32]:
        """Opens the files and returns the checksums; all of them are 0 if there are none or they are damaged."""
        if self._checksums is not None:
            return self._checksums
        self._pixels, self._checksums = self._read()  # at once: other threads read images meanwhile
        return self._checksums

    def _read(self) -> tuple[np.memmap[Any, Any] | None, NDArray[np.uint32]]:
        """Returns what the files hold; nothing if there are none or they are damaged."""
        nothing = (None, np.zeros(len(self), np.uint32))
        if not self.path.is_file():
            return nothing
        try:
            pixels = np.load(self.path, mmap_mode="r")
            checksums = np.fromfile(self.checksums_path, np.uint32)
        except (OSError, ValueError, EOFError) as error:
            self._warn("Decoded images in %s can't be read (%s); decoding them again.", self.path, error)
            return nothing
        if pixels.shape != self.shape or pixels.dtype != np.uint8 or len(checksums) != len(self):
            self._warn("Decoded images in %s are damaged; decoding them again.", self.path)
            return nothing
        return pixels, checksums

    def _create(self) -> None:
        """Makes both files, without an image; the checksums first, so that they never speak of older images."""
        with atomic_write(self.checksums_path) as temporary:
            np.zeros(len(self), np.uint32).tofile(temporary)
        with atomic_write(self.path) as temporary:
            np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=self.shape)

    def _warn(self, message: str, *arguments: object) -> None:
        """Logs one warning, whatever else is found."""
        if not self._has_warned:
            log.warning(message, *arguments)
        self._has_warned = True


def _overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def _checksum(pixels: NDArray[np.uint8]) -> int:
    """Returns a checksum that is never 0, which stands for an image that is not there."""
    return zlib.crc32(pixels.tobytes()) or 1


def keep_decoded(wanted: Sequence[tuple[str, DecodedImages, Indices]], workers: int = 0) -> None:
    """Decodes and keeps those images that are not kept yet; a disk that refuses costs a warning and not the run.

    Args:
        wanted: domains, their images, and the rows that will be read.
        workers: threads; a few more than there are cores if 0.
    """
    missing = [(domain, images, images.missing(rows)) for domain, images, rows in wanted]
    size = sum(len(rows) * images.image_bytes for _, images, rows in missing)
    if not size:
        return
    folder = wanted[0][1].path.parent
    # Whoever gives away gigabytes of a disk should read about it.
    level = logging.WARNING if size > 1e9 else logging.INFO
    log.log(level, "Keeping %s of decoded images in %s.", gb(size), folder)
    try:
        # The files are made with holes, so a full disk would be met in the middle of the work only.
        _check_room(folder, size)
        for domain, images, rows in missing:
            images.fill(rows, workers, f"decoding {domain}")
    except OSError as error:
        advice = "files are decoded each time. Give data.cache_dir more room, or pass data.cache_images=false."
        log.warning("Could not keep decoded images in %s (%s); %s", folder, error.strerror or error, advice)


def _check_room(folder: Path, size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    # Checked before the first image, since holes are filled at random and a full disk shows late.
    if size > free:
        raise OSError(errno.ENOSPC, f"{gb(size)} are needed, {gb(free)} are free")


def gb(size: int) -> str:
    """Returns a number of bytes in GB.

    >>> gb(88_300_000_000), gb(1_500_000)
    ('88.3 GB', '0.0015 GB')
    """
    return f"{size / 1e9:.3g} GB"


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
    # A disk may return other bytes than were written; the checksum finds it before a run uses them.
    is_whole = metadata.get("checksum") == _tensor_checksum(tensors)
    if not (is_whole and all(len(tensor) == count for tensor in tensors.values())):
        log.warning("The cached features %s are damaged; computing them again.", path)
        return None
    return Features({name: tensor.to(device) for name, tensor in tensors.items()}, seconds, is_cached=True)


def save_features(path: Path, features: Features) -> None:
    """Writes features in one step, with the checksum that ``load_features`` asks for."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in features.tensors.items()}
    metadata = {"checksum": _tensor_checksum(tensors), "seconds": f"{features.seconds:.3f}"}
    write_cache_file(path, lambda temporary: save_file(tensors, temporary, metadata=metadata))


def _tensor_checksum(tensors: dict[str, Tensor]) -> str:
    """Covers names, types, shapes and numbers."""
    value = 0
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.contiguous().view(torch.uint8).numpy().data, value)
    return f"{value:08x}"
