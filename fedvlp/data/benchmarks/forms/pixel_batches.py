"""CIFAR's files of pixels and labels, in their folder or in the archive that they came in."""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvlp.data.benchmarks.forms.pickled_arrays import SavedArray, read_pickled
from fedvlp.data.benchmarks.forms.pictures import Picture, known_class
from fedvlp.data.catalog import Description
from fedvlp.data.catalog.forms import PixelBatches
from fedvlp.utils.errors import UserError

SIDE = 32
"""Width and height of an image, in pixels."""


def has_batches(folder: Path, part: PixelBatches) -> bool:
    """Whether the files are there, or their archive."""
    return (folder / part.folder).is_dir() or (folder / part.archive).is_file()


def read_pixel_batches(folder: Path, part: PixelBatches, description: Description) -> list[Picture]:
    """Returns the images of all files.

    Raises:
        UserError: if a file is missing, or is not the one that was published.
    """
    (domain,) = description.domains
    pictures: list[Picture] = []
    with _opened(folder, part) as files:
        names = files.read(part.names).get(part.names_key.encode(), [])
        classes = [known_class(bytes(name).decode(), description, files.place) for name in names]
        for file, role in part.files.items():
            batch = files.read(file)
            pixels = _pixels(batch.get(b"data"), files.path(file))
            labels = _labels(batch.get(part.labels.encode()), len(pixels), len(classes), files.path(file))
            for row, (image, label) in enumerate(zip(pixels, labels, strict=True)):
                pictures.append(Picture(domain, classes[label], f"{file}_{row:05d}", role, pixels=image))
    return pictures


class _Files:
    """The files in a folder."""

    def __init__(self, folder: Path, part: PixelBatches) -> None:
        self.folder = folder
        self.part = part
        self.place = str(folder)

    def path(self, name: str) -> str:
        """Returns what messages call a file."""
        return f"{self.place}/{name}"

    def read(self, name: str) -> dict[bytes, Any]:
        """Returns what a file holds.

        Raises:
            UserError: if it is missing, or is not the one that was published.
        """
        content = self._content(name)
        if content is None:
            raise UserError(f"Expected the file {self.path(name)}; it is missing. Extract the archive again.")
        _check_digest(content, self.part.md5[name], self.path(name))
        return read_pickled(content, self.path(name))

    def _content(self, name: str) -> bytes | None:
        path = self.folder / name
        return path.read_bytes() if path.is_file() else None


def _check_digest(content: bytes, published: str, path: str) -> None:
    """Raises UserError for a file that is not the one that was published."""
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != published:
        raise UserError(
            f"Expected {path} with the published MD5 {published}; it has {found}. It is damaged or was changed: get it "
            "again."
        )


class _Archive(_Files):
    """The files in an archive."""

    def __init__(self, archive: tarfile.TarFile, path: Path, part: PixelBatches) -> None:
        super().__init__(path, part)
        self.archive = archive

    def _content(self, name: str) -> bytes | None:
        try:
            member = self.archive.extractfile(f"{self.part.folder}/{name}")
        except KeyError:
            return None
        return member.read() if member else None


@contextmanager
def _opened(folder: Path, part: PixelBatches) -> Iterator[_Files]:
    """Opens the folder if it is there, else the archive.

    Raises:
        UserError: if the archive is damaged.
    """
    if (folder / part.folder).is_dir():
        yield _Files(folder / part.folder, part)
        return
    path = folder / part.archive
    try:
        with tarfile.open(path, "r:gz") as archive:
            yield _Archive(archive, path, part)
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise UserError(f"The archive {path} can't be read ({error}). It is damaged: get it again.") from error


def _pixels(data: object, path: str) -> NDArray[np.uint8]:
    """Returns the images of a file as [N, H, W, 3]; in the file all red values come before the green and blue ones."""
    array = data.bytes_of(SIDE * SIDE * 3) if isinstance(data, SavedArray) else None
    if array is None:
        raise UserError(f"Expected rows of {SIDE * SIDE * 3:,} bytes in {path}; it holds something else. Get it again.")
    by_colour = array.reshape(-1, 3, SIDE, SIDE)
    return np.moveaxis(by_colour, 1, -1)


def _labels(labels: object, images: int, classes: int, path: str) -> list[int]:
    """Returns the label of each image of a file."""
    if not (isinstance(labels, list) and len(labels) == images):
        raise UserError(f"Expected a label for each of the {images:,} images of {path}. Get it again.")
    if not all(type(label) is int and 0 <= label < classes for label in labels):
        raise UserError(f"Expected labels from 0 to {classes - 1} in {path}; found others. Get it again.")
    return labels
