"""What a reader says of one image, and mistakes that all of them may find."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from fedvlp.data.benchmarks.layouts import some
from fedvlp.data.catalog import Description, SplitName
from fedvlp.utils.errors import UserError


@dataclass(frozen=True, slots=True)
class Picture:
    """One image of a data set on disk.

    Attributes:
        domain: its domain.
        class_name: its class, in the data set's own spelling.
        path: where it lies; of pixels, the file that they are in and their row in it.
        role: what it does by the official split; None where that is not said.
        reason: why it does not count; empty if it does.
        pixels: uint8 of shape [H, W, 3], RGB, where it is no file of its own.
    """

    domain: str
    class_name: str
    path: str
    role: SplitName | None = None
    reason: str = ""
    pixels: NDArray[np.uint8] | None = None


def path_inside(folder: Path, relative: str, source: Path) -> str:
    """Returns the path of an image that a file names.

    Raises:
        UserError: if it leads out of the folder.
    """
    named = PurePosixPath(relative.replace("\\", "/"))
    if named.is_absolute() or ".." in named.parts or not relative.strip("./"):
        raise UserError(
            f"Expected paths below {folder} in {source}; found {relative[:80]!r}. Get the file anew from its publisher."
        )
    return os.path.join(folder, *named.parts)


def check_there(pictures: Sequence[Picture], folder: Path, source: str) -> None:
    """Raises UserError unless the file of each image that something names is there."""
    missing = [os.path.relpath(picture.path, folder) for picture in pictures if not os.path.isfile(picture.path)]
    if missing:
        raise UserError(
            f"{source} names {len(missing):,} images that are not there: {some(sorted(missing))}. Add them below "
            f"{folder}, or remove it if it is of other images."
        )


def known_class(name: str, description: Description, source: str) -> str:
    """Returns the class that a name stands for.

    Raises:
        UserError: if the data set has no such class.
    """
    found = description.class_of(name)
    if found is None:
        raise UserError(
            f"Expected classes of {description.name} ({some(description.class_names, most=5)}) in {source}; found "
            f"{name[:80]!r}. Take the file of {description.name}, or read these images as DomainFolders."
        )
    return found
