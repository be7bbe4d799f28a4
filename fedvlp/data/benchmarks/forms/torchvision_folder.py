"""Folders that torchvision's own classes read; a class is asked where each image lies, and opens none."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from fedvlp.data.benchmarks.forms.pictures import Picture, check_there, known_class
from fedvlp.data.catalog import Description
from fedvlp.data.catalog.forms import SplitFile, TorchvisionFolder
from fedvlp.utils.errors import UserError


def read_torchvision_folder(folder: Path, part: TorchvisionFolder, description: Description) -> list[Picture]:
    """Returns the images that a class of torchvision finds.

    Raises:
        UserError: if the folder has another name than torchvision gives it, what lies in it is damaged, or images are
            missing.
    """
    root = _root(folder, part, description)
    (domain,) = description.domains
    source = f"torchvision's {part.reader} in {folder}"
    pictures: list[Picture] = []
    for split in part.splits or ("",):
        found = _open(root, part, split)
        names = [known_class(str(name), description, source) for name in found.classes]
        # Its loader is given the path of an image, and what it returns is passed on.
        for path, label in (found[index] for index in range(len(found))):
            pictures.append(Picture(domain, names[int(label)], path, part.splits.get(split)))
    check_there(pictures, folder, source)
    return pictures


def _root(folder: Path, part: TorchvisionFolder, description: Description) -> Path:
    """Returns the folder that torchvision calls the root.

    Raises:
        UserError: if the folder of the data set is not called as torchvision calls it.
    """
    absolute = Path(os.path.abspath(folder))
    names = PurePosixPath(part.folder).parts
    if absolute.parts[-len(names) :] != names:
        parts = chain.from_iterable(form.parts for form in description.forms)
        files = [other.file for other in parts if isinstance(other, SplitFile)]
        or_file = f", or put CoOp's {files[0]} into it" if files else ""
        raise UserError(
            f"torchvision reads {description.name} in a folder {part.folder} only; it is in {absolute}. Rename that "
            f"folder{or_file}."
        )
    return absolute.parents[len(names) - 1]


def _open(root: Path, part: TorchvisionFolder, split: str) -> Any:
    """Returns torchvision's data set of a split.

    Raises:
        UserError: in place of all that torchvision raises.
    """
    import torchvision.datasets

    options = {"split": split} if split else {}
    try:
        return getattr(torchvision.datasets, part.reader)(str(root), loader=os.fspath, **options)
    except Exception as error:  # damaged lists raise nearly every type in torchvision and scipy
        told = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"torchvision's {part.reader} can't read {root / part.folder} ({told}). Files in it are missing or "
            "damaged: get them again."
        ) from error
