"""Room on a disk, and how it is said."""

from __future__ import annotations

import shutil
from pathlib import Path


def free_bytes(path: Path) -> int:
    """Returns how many bytes are free where a path is or is to be."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def size_in_words(count: int) -> str:
    """Returns a number of bytes as people say it.

    >>> size_in_words(18_521_436_207), size_in_words(191_395_900), size_in_words(1_900)
    ('18.5 GB', '191 MB', '2 kB')
    """
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
