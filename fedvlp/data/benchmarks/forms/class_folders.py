"""Folders of class folders."""

from __future__ import annotations

import os
from pathlib import Path

from fedvlp.data.benchmarks.forms.pictures import Picture
from fedvlp.data.benchmarks.layouts import some
from fedvlp.data.catalog import Description
from fedvlp.data.catalog.forms import ClassFolders
from fedvlp.data.files.decoding import is_hidden
from fedvlp.data.files.layout import composed, list_images
from fedvlp.utils.errors import UserError

IGNORED = "images of folders that are no class"


def has_class_folders(folder: Path, part: ClassFolders, description: Description) -> bool:
    """Whether a folder of at least one class is there."""
    try:
        with os.scandir(folder / part.folder) as entries:
            return any(entry.is_dir() and description.class_of(composed(entry.name)) for entry in entries)
    except OSError:
        return False


def read_class_folders(folder: Path, part: ClassFolders, description: Description) -> list[Picture]:
    """Returns the images of class folders.

    Raises:
        UserError: if there are other folders as well.
    """
    inside = folder / part.folder
    domain = part.domain or description.domains[0]
    _check_folders(inside, part, description)
    classes: dict[str, str | None] = {}
    pictures: list[Picture] = []
    for names, path in list_images(inside):
        if len(names) < 2:  # a stray image beside the folders
            continue
        class_name = classes.setdefault(names[0], description.class_of(composed(names[0])))
        if class_name is None:
            pictures.append(Picture(domain, names[0], path, reason=IGNORED))
        else:
            pictures.append(Picture(domain, class_name, path, part.role))
    return pictures


def _check_folders(inside: Path, part: ClassFolders, description: Description) -> None:
    """Raises UserError for a folder that is no class and not known to lie there."""
    with os.scandir(inside) as entries:
        names = sorted(composed(entry.name) for entry in entries if entry.is_dir() and not is_hidden(entry.name))
    strangers = [name for name in names if description.class_of(name) is None and name not in part.ignored]
    if strangers:
        raise UserError(
            f"Expected the class folders of {description.name} ({some(description.class_names, most=5)}) in {inside}; "
            f"found {some(strangers)} as well. Remove them, or read these images as DomainFolders."
        )
