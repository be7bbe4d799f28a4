"""Labelled images of one domain, and the image files that `predict` is given."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedvlp.data.files.decoding import EXTENSIONS, is_hidden, is_image_name, read_rgb, unreadable
from fedvlp.utils.errors import UserError

Indices = NDArray[np.int64]
Transform = Callable[[Image.Image], Tensor]


@runtime_checkable
class Images(Protocol):
    """The labelled images of one domain, in an order that never changes.

    Attributes:
        labels: class of each image, int64.
        names: what each image is called; unique, and the same on every machine.
    """

    labels: Indices
    names: list[str]

    def __len__(self) -> int:
        """Counts the images."""
        ...

    def __getitem__(self, index: int) -> Image.Image:
        """Returns one image in 8-bit RGB."""
        ...

    def fingerprint(self, indices: Sequence[int] | Indices) -> str:
        """Returns a hash that changes when one of these images, or their order, does."""
        ...


class FolderImages:
    """Image files below a folder.

    Args:
        paths: the files.
        names: what each is called; unique.
        labels: class of each.
    """

    def __init__(
        self, paths: Sequence[str | os.PathLike[str]], names: Sequence[str], labels: Sequence[int] | Indices
    ) -> None:
        self.paths = [os.fspath(path) for path in paths]
        self.names = list(names)
        self.labels = np.asarray(labels, dtype=np.int64)
        _check_lengths(len(self.paths), self.names, self.labels)

    def __len__(self) -> int:
        """Counts the images."""
        return len(self.paths)

    def __getitem__(self, index: int) -> Image.Image:
        """Reads one image as 8-bit RGB."""
        return read_rgb(self.paths[index])

    def fingerprint(self, indices: Sequence[int] | Indices) -> str:
        """Hashes name, size and time of change of these files; their content is not read."""
        digest = hashlib.sha256()
        for index in indices:
            line = f"{self.names[index]}\0{_size_and_time(self.paths[index])}\n"
            # File names may hold bytes that are not UTF-8; Python keeps them as surrogates.
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def without(self, positions: Sequence[int]) -> FolderImages:
        """Returns the same images but those at the positions given."""
        kept = sorted(set(range(len(self))) - set(positions))
        return FolderImages([self.paths[i] for i in kept], [self.names[i] for i in kept], self.labels[kept])


def identity(images: Images) -> str:
    """Returns how many images there are, and a hash of them that is equal on all machines that have the same.

    Of files it takes names and sizes, since the time of change is that of a copy; of others what their own
    ``fingerprint`` does.
    """
    if not isinstance(images, FolderImages):
        return f"{len(images)} images, {images.fingerprint(np.arange(len(images)))[:8]}"
    digest = hashlib.sha256()
    for name, path in zip(images.names, images.paths, strict=True):
        size = _size_and_time(path).partition("\0")[0]
        digest.update(f"{name}\0{size}\n".encode("utf-8", "surrogateescape"))
    return f"{len(images)} images, {digest.hexdigest()[:8]}"


def _size_and_time(path: str) -> str:
    """Returns the size of a file in bytes and its time of change in nanoseconds, or that there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return "missing"
    return f"{status.st_size}\0{status.st_mtime_ns}"


class ArrayImages:
    """Images in memory.

    Args:
        arrays: uint8 of shape [N, H, W, 3], RGB.
        labels: class of each.
        names: what each is called; its position where none are given.
    """

    def __init__(
        self,
        arrays: NDArray[np.uint8],
        labels: Sequence[int] | Indices,
        names: Sequence[str] | None = None,
    ) -> None:
        if arrays.dtype != np.uint8 or arrays.ndim != 4 or arrays.shape[-1] != 3:
            raise ValueError(f"Expected uint8 of shape [N, H, W, 3]; got {arrays.dtype} of shape {arrays.shape}.")
        self.arrays = arrays
        self.labels = np.asarray(labels, dtype=np.int64)
        self.names = [f"{i:06d}" for i in range(len(arrays))] if names is None else list(names)
        _check_lengths(len(arrays), self.names, self.labels)

    def __len__(self) -> int:
        """Counts the images."""
        return len(self.arrays)

    def __getitem__(self, index: int) -> Image.Image:
        """Returns one image as 8-bit RGB."""
        return Image.fromarray(self.arrays[index])

    def fingerprint(self, indices: Sequence[int] | Indices) -> str:
        """Hashes names and pixels of these images."""
        digest = hashlib.sha256(repr(self.arrays.shape[1:]).encode())
        for index in indices:
            digest.update(self.names[index].encode() + b"\0" + np.ascontiguousarray(self.arrays[index]).tobytes())
        return digest.hexdigest()


def _check_lengths(count: int, names: Sequence[str], labels: Indices) -> None:
    """Raises unless there is one name and one label an image and names are unique."""
    if not count == len(names) == len(labels):
        raise ValueError(f"Expected one name and one label an image; got {count}, {len(names)} and {len(labels)}.")
    if len(set(names)) < len(names):
        raise ValueError("Expected unique names, so that a split can be written down; some occur twice.")


def image_paths(paths: Sequence[str]) -> list[Path]:
    """Returns the image files that are named or lie in the folders named, at any depth, sorted within each folder.

    Raises:
        UserError: if a path does not exist, is no image, or a folder holds none.
    """
    found: dict[Path, None] = {}
    for name in paths:
        path = Path(name).expanduser()
        if path.is_dir():
            found.update(dict.fromkeys(_images_below(path)))
        elif not path.exists():
            raise UserError(f"Expected an image or a folder of images; {path} does not exist. Check its spelling.")
        elif path.suffix.lower() not in EXTENSIONS:
            raise UserError(f"Expected an image ({', '.join(sorted(EXTENSIONS))}); got {path}. Name images or folders.")
        else:
            found[path] = None
    if not found:
        raise UserError("Expected at least one image or a folder of images; got none.")
    return list(found)


def _images_below(folder: Path) -> list[Path]:
    """Returns the images of a folder and its folders, sorted."""
    found: list[Path] = []
    for parent, _, files in os.walk(folder, followlinks=False):
        if any(is_hidden(name) for name in Path(parent).relative_to(folder).parts):
            continue
        found += [Path(parent, name) for name in files if is_image_name(name)]
    if not found:
        raise UserError(f"Expected images ({', '.join(sorted(EXTENSIONS))}) in {folder}; found none. Check the folder.")
    return sorted(found)


class ImageFiles:
    """Iterates over image files in batches of (paths, pixels).

    All files are decoded once beforehand, so that a damaged one is reported before any work is done.

    Args:
        paths: image files, as ``image_paths`` gives them.
        transform: makes a tensor [3, V, V] of an image.
        batch_size: images in a batch.
    """

    def __init__(self, paths: Sequence[Path], transform: Transform, batch_size: int = 64) -> None:
        bad = unreadable(paths)
        if bad:
            raise UserError(bad_images_message([(str(paths[i]), reason) for i, reason in bad.items()], len(paths)))
        self.paths = list(paths)
        self.transform = transform
        self.batch_size = batch_size

    def __len__(self) -> int:
        """Counts the batches."""
        return -(-len(self.paths) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[list[Path], Float[Tensor, "B 3 V V"]]]:
        """Yields paths and pixels [B, 3, V, V], in the order of the paths."""
        for start in range(0, len(self.paths), self.batch_size):
            batch = self.paths[start : start + self.batch_size]
            yield batch, torch.stack([self.transform(read_rgb(path)) for path in batch])


def bad_images_message(bad: Sequence[tuple[str, str]], total: int, remedy: str = "", most: int = 50) -> str:
    """Lists unreadable images with reasons.

    >>> print(bad_images_message([("a.png", "the file is empty")], total=9, remedy="Mend it."))
    1 of 9 images can't be read:
      a.png: the file is empty
    Mend it.
    """
    lines = [
        f"{len(bad)} of {total} images can't be read:",
        *(f"  {name}: {reason}" for name, reason in bad[:most]),
    ]
    if len(bad) > most:
        lines.append(f"  ... and {len(bad) - most} more")
    return "\n".join([*lines, remedy or "Mend or remove them."])
