"""Read image files as 8-bit RGB, and represent the labelled images of one domain."""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from tqdm import tqdm

from fedvlp.data.files.dicom import DICOM_EXTENSIONS, is_dicom, percentile_range, read_dicom, scale_to_bytes
from fedvlp.data.files.shards import MEMBER, PathLike, read_content
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Intensity

log = logging.getLogger(__name__)
Indices = NDArray[np.int64]
Integers = Sequence[int] | Indices
Transform = Callable[[Image.Image], Tensor]
Item = TypeVar("Item")
Result = TypeVar("Result")
# Warnings about unusual but readable files do not help users.
warnings.filterwarnings("ignore", module=r"PIL\b")
NEARLY_BLACK = "no value is above 15 of 255"
EXTENSIONS = frozenset({
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm",
    *DICOM_EXTENSIONS,
})  # fmt: skip
SYSTEM_NAMES = frozenset({
    "__macosx", "@eadir", "@recycle", "@recently-snapshot", "#recycle", "#snapshot", "$recycle.bin", "lost+found",
    "system volume information", "thumbs.db", "desktop.ini",
})  # fmt: skip
"""Folders and files of operating systems, archivers and network storage, in lower case."""


def is_hidden(name: str) -> bool:
    """Whether a name is hidden or a system name, such as ``.DS_Store``, ``__MACOSX`` or ``@eaDir``."""
    return name.startswith(".") or name.lower() in SYSTEM_NAMES


def compose_name(name: str) -> str:
    """Compose a name's Unicode (NFC), since file systems store accents in different forms."""
    return unicodedata.normalize("NFC", name)


def folders_in(folder: Path) -> list[str]:
    """List the names of a folder's subfolders, sorted; empty if it cannot be read."""
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not is_hidden(entry.name))
    except OSError:
        return []


def is_image(path: str) -> bool:
    """Whether a file has the extension of an image."""
    return os.path.splitext(path)[1].lower() in EXTENSIONS


def list_images(root: Path) -> list[tuple[tuple[str, ...], str]]:
    """List the images below the root, sorted, as names of folders and file, and path."""
    return [(parts, path) for parts, path in list_files(root) if is_image(path)]


def list_files(root: Path) -> list[tuple[tuple[str, ...], str]]:
    """List all files below the root that are not hidden, as ``list_images`` does."""
    try:
        return sorted(_files_below(root, (), frozenset()))
    except OSError as error:
        raise UserError(f"Could not list the images in {root}: {error}. Check permissions and disk.") from error


def _files_below(folder: Path, parts: tuple[str, ...], above: frozenset[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    # Following a link to a parent folder would never end.
    real_path = os.path.realpath(folder)
    if real_path in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if entry.is_dir():
                yield from _files_below(Path(entry.path), (*parts, entry.name), above | {real_path})
            else:
                yield (*parts, entry.name), entry.path


def to_rgb(image: Image.Image, intensity: Intensity = "full") -> Image.Image:
    """Convert an image to upright 8-bit RGB on white.

    With "full", 16-bit values lose their low byte, and float values in [0, 1] are scaled to [0, 255]; others are
    clipped to it. With "percentile", the image's percentiles become black and white. Raises ValueError if values are
    NaN or infinite, or ``intensity`` is "window", which only DICOM files have.
    """
    # The pixels are readable even if the EXIF block is damaged.
    with suppress(SyntaxError, ValueError, KeyError, TypeError, struct.error):
        image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return Image.fromarray(_to_bytes(np.asarray(image), intensity)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _to_bytes(values: NDArray[Any], intensity: Intensity) -> NDArray[np.uint8]:
    if intensity == "window":
        raise ValueError("it has no window; choose percentile or full")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError("it contains NaN or infinity")
    if intensity == "percentile":
        return scale_to_bytes(values, *percentile_range(values))
    # Formats do not state the range of values, so it is taken from the largest and smallest value.
    if values.dtype.kind == "f":
        scale = 255.0 if values.size and values.min() >= 0 and values.max() <= 1 else 1.0
        return np.asarray((values * scale).round().clip(0, 255), dtype=np.uint8)
    is_wide = values.dtype == np.uint16 or values.max(initial=0) > 255
    return np.asarray((values.clip(0) // (256 if is_wide else 1)).clip(0, 255), dtype=np.uint8)


def read_rgb(file: PathLike | BytesIO, intensity: Intensity = "full") -> Image.Image:
    """Read one image file, an image in a tar file, or an image's bytes, as 8-bit RGB."""
    if not isinstance(file, BytesIO) and MEMBER.fullmatch(os.fspath(file)):
        file = BytesIO(read_content(file))
    if is_dicom(file):
        return read_dicom(file, intensity)
    with Image.open(file) as image:
        image.load()
        return to_rgb(image, intensity)


def decode_all(paths: Sequence[PathLike], description: str) -> tuple[dict[int, str], list[str]]:
    """Read and decode every image file once, in threads; log a warning if some are nearly black.

    Return reasons why files can't be decoded, by position in ``paths``, and a digest of each file's bytes, empty if it
    can't be read.
    """
    decoded = map_in_threads(_decode, paths, description)
    if dark := [position for position, (reason, _) in enumerate(decoded) if reason == NEARLY_BLACK]:
        line = "%d of %d images are nearly black, such as %s. Try --model.clip.intensity percentile."
        log.warning(line, len(dark), len(paths), os.fspath(paths[dark[0]]))
    bad = {position: reason for position, (reason, _) in enumerate(decoded) if reason not in ("", NEARLY_BLACK)}
    return bad, [digest for _, digest in decoded]


def check_readable(paths: Sequence[Path], names: Sequence[str], description: str = "checking images") -> None:
    """Decode every image file; raise UserError with the names of unreadable files and the reasons."""
    if bad := decode_all(paths, description)[0]:
        raise UserError(bad_images_message([(names[position], reason) for position, reason in bad.items()], len(paths)))


def group_copies(items: Iterable[Item], digests: Iterable[str]) -> list[list[Item]]:
    """Group the items that share a digest; empty digests are ignored.

    >>> group_copies(["a", "b", "c", "d", "e"], ["1", "2", "1", "", ""])
    [['a', 'c']]
    """
    groups: dict[str, list[Item]] = defaultdict(list)
    for item, digest in zip(items, digests, strict=True):
        groups[digest].append(item)
    return [group for digest, group in groups.items() if digest and len(group) > 1]


def map_in_threads(function: Callable[[Item], Result], items: Sequence[Item], description: str) -> list[Result]:
    """Apply a function to each item with a progress bar, in slightly more threads than cores."""
    results: list[Result] = []
    bar = tqdm(desc=description, total=len(items), unit="image", leave=False, disable=None)
    with bar, ThreadPoolExecutor(min(32, (os.cpu_count() or 1) + 2)) as pool:
        for start in range(0, len(items), 256):  # an interruption waits for at most 256 items
            for result in pool.map(function, items[start : start + 256]):
                results.append(result)
                bar.update()
    return results


def content_digest(content: bytes) -> str:
    """Compute the digest that identifies copies of an image."""
    return hashlib.sha256(content).hexdigest()[:32]


def _decode(path: PathLike) -> tuple[str, str]:
    """Decode an image file; return a problem ("" if there is none) and the digest of its bytes."""
    digest = ""
    try:
        if not os.path.exists(path) and os.path.islink(path):
            return f"it is a link to {os.readlink(path)}, which does not exist", digest
        content = read_content(path)
        if not content:
            return "the file is empty", digest
        digest = content_digest(content)
        is_dark = np.asarray(read_rgb(BytesIO(content))).max() < 16
        return NEARLY_BLACK if is_dark else "", digest
    except Exception as error:  # PIL's decoders raise many types for damaged files
        if isinstance(error, UnidentifiedImageError):
            return "it is not an image that Pillow can read", digest
        return getattr(error, "strerror", None) or str(error) or type(error).__name__, digest


@runtime_checkable
class Images(Protocol):
    """The labelled images of one domain, in an order that never changes.

    Attributes:
        labels: Class of each image, int64.
        names: Name of each image; unique, and the same on every machine.
    """

    labels: Indices
    names: list[str]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Image.Image:
        """Load one image in 8-bit RGB."""

    def fingerprint(self, indices: Integers) -> str:
        """Compute a hash that changes with these images and their order."""


class FolderImages(Images):
    """Image files below a folder.

    Args:
        paths: The files.
        names: Name of each image; unique.
        labels: Class of each image.
        intensity: The values that become black and white in greyscale images of more than 8 bits.
    """

    def __init__(
        self, paths: Sequence[PathLike], names: Sequence[str], labels: Integers, intensity: Intensity = "full"
    ) -> None:
        self.paths = [os.fspath(path) for path in paths]
        self.names = list(names)
        self.labels = np.asarray(labels, dtype=np.int64)
        self.intensity = intensity
        _check_lengths(len(self.paths), self.names, self.labels)

    def __getitem__(self, index: int) -> Image.Image:
        return read_rgb(self.paths[index], self.intensity)

    def fingerprint(self, indices: Integers) -> str:
        """Hash name, size and modification time of these files, without reading their content."""
        lines = [f"{self.names[index]}\0{_size_and_time(self.paths[index])}\n" for index in indices]
        return _digest(lines if self.intensity == "full" else [*lines, self.intensity])


def with_intensity(images: Images, transform: Transform) -> Images:
    """Read the files of images with the intensity that belongs to a transform."""
    intensity = intensity_of(transform)
    if not isinstance(images, FolderImages) or images.intensity == intensity:
        return images
    return FolderImages(images.paths, images.names, images.labels, intensity)


def intensity_of(transform: Transform) -> Intensity:
    """Return a transform's intensity for reading images; CLIP's transforms have it as an attribute."""
    return getattr(transform, "intensity", "full")


def identity(images: Images) -> str:
    """Describe a domain by its number of images and a hash that is equal on all machines with the same images."""
    if not isinstance(images, FolderImages):
        return f"{len(images)} images, {images.fingerprint(np.arange(len(images)))[:8]}"
    # The modification time differs between copies, so it is ignored.
    sizes = [_size_and_time(path).partition("\0")[0] for path in images.paths]
    digest = _digest(f"{name}\0{size}\n" for name, size in zip(images.names, sizes, strict=True))
    return f"{len(images)} images, {digest[:8]}"


def _digest(lines: Iterable[str]) -> str:
    # File names may contain bytes that are not UTF-8, which Python represents as surrogates.
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _size_and_time(path: str) -> str:
    member = MEMBER.fullmatch(path)
    try:
        status = os.stat(member[1] if member else path)
    except OSError:
        return "missing"
    return f"{member[3] if member else status.st_size}\0{status.st_mtime_ns}"


class ArrayImages(Images):
    """Images in memory.

    Args:
        arrays: uint8 of shape [N, H, W, 3], RGB.
        labels: Class of each image.
        names: Name of each image; its position if not given.

    >>> ArrayImages(np.zeros((2, 64, 64, 3), np.uint8), labels=[0, 1]).names
    ['000000', '000001']
    """

    def __init__(self, arrays: NDArray[np.uint8], labels: Integers, names: Sequence[str] | None = None) -> None:
        if arrays.dtype != np.uint8 or arrays.ndim != 4 or arrays.shape[-1] != 3:
            raise ValueError(f"Expected uint8 of shape [N, H, W, 3]; got {arrays.dtype} of shape {arrays.shape}.")
        self.arrays = arrays
        self.labels = np.asarray(labels, dtype=np.int64)
        self.names = [f"{i:06d}" for i in range(len(arrays))] if names is None else list(names)
        _check_lengths(len(arrays), self.names, self.labels)

    def __getitem__(self, index: int) -> Image.Image:
        return Image.fromarray(self.arrays[index])

    def fingerprint(self, indices: Integers) -> str:
        """Hash names and pixels of these images."""
        digest = hashlib.sha256(repr(self.arrays.shape[1:]).encode())
        for index in indices:
            digest.update(self.names[index].encode() + b"\0" + np.ascontiguousarray(self.arrays[index]).tobytes())
        return digest.hexdigest()


def _check_lengths(count: int, names: Sequence[str], labels: Indices) -> None:
    if not count == len(names) == len(labels):
        raise ValueError(f"Expected a name and a label per image; got {count}, {len(names)} and {len(labels)}.")
    if len(set(names)) < len(names):
        raise ValueError("Expected unique names of images, since splits refer to names; some occur twice.")


def image_paths(paths: Sequence[str]) -> list[Path]:
    """List the given image files, and the images at any depth below the given folders, without duplicates."""
    endings = ", ".join(sorted(EXTENSIONS))
    images: list[Path] = []
    for path in (Path(name).expanduser() for name in paths):
        if not path.exists():
            raise UserError(f"Expected an image or a folder of images; {path} does not exist. Check its spelling.")
        if path.is_dir():
            matches = [Path(image) for _, image in list_images(path)]
        else:
            matches = [path] if is_image(path.name) else []
        if not matches:
            raise UserError(f"Expected an image or a folder of images ({endings}); found none in {path}. Check it.")
        images += matches
    if not images:
        raise UserError("Expected at least one image or a folder of images; got none.")
    return list(dict.fromkeys(images))


def image_batches(
    paths: Sequence[Path], transform: Transform, batch_size: int = 64
) -> Iterator[tuple[Sequence[Path], Float[Tensor, "B 3 V V"]]]:
    """Iterate over image files in batches, with their pixels after ``transform``.

    All files are decoded once before the first batch, so that damaged files are reported before any work is done.
    """
    check_readable(paths, list(map(str, paths)))
    for start in range(0, len(paths), batch_size):
        batch = paths[start : start + batch_size]
        yield batch, torch.stack([transform(read_rgb(path, intensity_of(transform))) for path in batch])


def bad_images_message(bad: Sequence[tuple[str, str]], total: int, remedy: str = "", most: int = 50) -> str:
    """List unreadable images with reasons.

    >>> print(bad_images_message([("a.png", "the file is empty")], total=9, remedy="Repair it."))
    1 of 9 images can't be read:
      a.png: the file is empty
    Repair it.
    """
    lines = [f"{len(bad)} of {total} images can't be read:", *(f"  {name}: {reason}" for name, reason in bad[:most])]
    if len(bad) > most:
        lines.append(f"  ... and {len(bad) - most} more")
    return "\n".join([*lines, remedy or "Repair or remove them."])
