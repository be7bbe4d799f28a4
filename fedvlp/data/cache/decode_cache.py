"""Image files that are decoded once: kept on disk as they are after the fixed first steps of a transform.

For CLIP's own transform these steps are the resize of the shorter side and the centre crop, so an image of 224 x 224
pixels takes 150 kB. Random crops begin at the whole image, so ``augmentation="crop_flip"`` goes on decoding the files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

from fedvlp.data.cache.fixed_steps import FixedSteps
from fedvlp.data.files.images import FolderImages, Indices, in_threads
from fedvlp.utils.files import atomic_write, locked

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
    if size > free:
        raise OSError(errno.ENOSPC, f"{gb(size)} are needed, {gb(free)} are free")


def gb(size: int) -> str:
    """Returns a number of bytes in GB.

    >>> gb(88_300_000_000), gb(1_500_000)
    ('88.3 GB', '0.0015 GB')
    """
    return f"{size / 1e9:.3g} GB"
