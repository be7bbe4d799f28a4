"""Image files to 8-bit RGB, whatever they hold, without a warning."""

from __future__ import annotations

import os
import struct
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from tqdm import tqdm

Item = TypeVar("Item")
Result = TypeVar("Result")
MOST_ASPECT = 200
"""By how much the longer side of a picture may exceed the shorter one."""
EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"})


def is_image_name(name: str) -> bool:
    """Whether a file name ends like an image's and is not hidden.

    >>> is_image_name("Dog 1.JPG"), is_image_name("._dog.jpg"), is_image_name("labels.txt")
    (True, False, False)
    """
    return not is_hidden(name) and os.path.splitext(name)[1].lower() in EXTENSIONS


def is_hidden(name: str) -> bool:
    """Whether an operating system or an archiver put it there: ``.DS_Store``, ``__MACOSX`` and the like."""
    return name.startswith(".") or name == "__MACOSX"


def to_rgb(image: Image.Image) -> Image.Image:
    """Returns an image upright, in 8-bit RGB; what is transparent shows white.

    Palettes, grey, 1-bit and CMYK are converted; 16-bit values lose their low byte; float values in [0, 1] are scaled
    to [0, 255], other float values are clipped to it; of an animation the first frame is taken.
    """
    image = _upright(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return Image.fromarray(_to_bytes(np.asarray(image))).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _upright(image: Image.Image) -> Image.Image:
    """Turns an image as its EXIF orientation says; a damaged EXIF block does not spoil the pixels."""
    try:
        return ImageOps.exif_transpose(image)
    except (SyntaxError, ValueError, KeyError, TypeError, struct.error):
        return image


def _to_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Scales integers of up to 16 bits, or floats, to uint8."""
    if values.dtype.kind == "f":
        values = np.nan_to_num(values)
        scale = 255.0 if values.size and values.min() >= 0 and values.max() <= 1 else 1.0
        return np.asarray((values * scale).round().clip(0, 255), dtype=np.uint8)
    is_wide = values.dtype == np.uint16 or values.max(initial=0) > 255
    return np.asarray((values.clip(0) // (256 if is_wide else 1)).clip(0, 255), dtype=np.uint8)


def _check_shape(width: int, height: int) -> None:
    """Refuses what would take all memory once its shorter side is resized, and shows a model next to nothing.

    Raises:
        ValueError: If one side is far longer than the other.
    """
    if max(width, height) > MOST_ASPECT * min(width, height):
        raise ValueError(f"it has {width} x {height} pixels, so one side is more than {MOST_ASPECT} times the other")


def _decode(path: str | os.PathLike[str]) -> Image.Image:
    with Image.open(path) as image:
        _check_shape(*image.size)
        image.load()
        return to_rgb(image)


def read_rgb(path: str | os.PathLike[str]) -> Image.Image:
    """Reads one image file as RGB, without the warnings that PIL gives about odd but readable files.

    In a thread it leaves them to `pillow_is_quiet`.
    """
    if threading.current_thread() is not threading.main_thread():
        return _decode(path)
    with pillow_is_quiet():
        return _decode(path)


@contextmanager
def pillow_is_quiet() -> Iterator[None]:
    """Hides PIL's warnings; the filter is the process's own, so it is set around threads and not inside them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\b")
        yield


def unreadable(paths: Sequence[str | os.PathLike[str]], description: str = "checking images") -> dict[int, str]:
    """Decodes every image file, in threads, and returns why some can't be: reason by position in ``paths``."""
    reasons = in_threads(_reason, paths, description)
    return {position: reason for position, reason in enumerate(reasons) if reason is not None}


def in_threads(
    function: Callable[[Item], Result], items: Sequence[Item], description: str, workers: int = 0
) -> list[Result]:
    """Returns what a function makes of images, in threads, with a bar and without the warnings that PIL gives.

    Args:
        function: is given one item after another.
        items: what to work on.
        description: stands before the bar.
        workers: how many threads; a few more than there are cores, but at most 32, if 0.
    """
    results: list[Result] = []
    bar = tqdm(desc=description, total=len(items), unit="image", leave=False, disable=None)
    with pillow_is_quiet(), bar, ThreadPoolExecutor(workers or min(32, (os.cpu_count() or 1) + 2)) as pool:
        for start in range(0, len(items), 256):  # whoever stops it waits for a few of them only
            for result in pool.map(function, items[start : start + 256]):
                results.append(result)
                bar.update()
    return results


def _reason(path: str | os.PathLike[str]) -> str | None:
    """Says why an image file can't be read, or nothing."""
    try:
        if not Path(path).stat().st_size:
            return "the file is empty"
        _decode(path)
    except Exception as error:  # PIL's decoders raise nearly every type on damaged files
        if isinstance(error, UnidentifiedImageError):
            return "it is not an image that Pillow knows"
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    return None
