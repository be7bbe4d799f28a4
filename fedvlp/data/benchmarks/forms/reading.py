"""Finds the form in which a data set lies, and reads it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedvlp.data.benchmarks.forms.class_folders import has_class_folders, read_class_folders
from fedvlp.data.benchmarks.forms.image_lists import read_image_lists
from fedvlp.data.benchmarks.forms.pictures import Picture
from fedvlp.data.benchmarks.forms.pixel_batches import has_batches, read_pixel_batches
from fedvlp.data.benchmarks.forms.split_file import read_split_file
from fedvlp.data.benchmarks.forms.torchvision_folder import read_torchvision_folder
from fedvlp.data.benchmarks.layouts import nearest_first, some
from fedvlp.data.catalog import Description
from fedvlp.data.catalog.forms import ClassFolders, Form, ImageLists, Part, PixelBatches, SplitFile, TorchvisionFolder
from fedvlp.data.files.layout import ImageFile, composed, unique
from fedvlp.utils.errors import UserError


def find_form(root: Path, description: Description) -> tuple[Path, Form] | None:
    """Returns the folder nearest to the root in which a data set lies in one of its forms, and the form.

    Of several forms in one folder the first of the description is taken.
    """
    if not description.forms or not root.is_dir():
        return None
    for folder in nearest_first(root):
        for form in description.forms:
            if all(_is_there(folder, part, description) for part in form.parts):
                return folder, form
    return None


def read_form(folder: Path, form: Form, description: Description) -> list[Picture]:
    """Returns the images of a data set that lies in a folder in one of its forms.

    Raises:
        UserError: if something is missing, damaged or contradicts itself.
    """
    pictures: list[Picture] = []
    for part in form.parts:
        is_lacking = isinstance(part, ClassFolders) and not has_class_folders(folder, part, description)
        pictures += [] if is_lacking else _read(folder, part, description)
    _check_roles(pictures, folder)
    return pictures


def _is_there(folder: Path, part: Part, description: Description) -> bool:
    """Whether what a part of a form is known by lies in a folder."""
    match part:
        case SplitFile():
            return (folder / part.file).is_file()
        case TorchvisionFolder():
            return all((folder / held).exists() for held in part.holds)
        case ClassFolders():
            return part.is_optional or has_class_folders(folder, part, description)
        case ImageLists():
            return all((folder / file).is_file() for file in part.files)
        case PixelBatches():
            return has_batches(folder, part)


def _read(folder: Path, part: Part, description: Description) -> list[Picture]:
    """Returns the images that one part of a form tells of."""
    match part:
        case SplitFile():
            return read_split_file(folder, part, description)
        case TorchvisionFolder():
            return read_torchvision_folder(folder, part, description)
        case ClassFolders():
            return read_class_folders(folder, part, description)
        case ImageLists():
            return read_image_lists(folder, part, description)
        case PixelBatches():
            return read_pixel_batches(folder, part, description)


def _check_roles(pictures: Sequence[Picture], folder: Path) -> None:
    """Raises UserError if an image has two roles, or is named twice."""
    # Without roles an image may have two classes: nine of ImageCLEF-DA show a bottle and a person, or a bus and a car.
    counts = Counter((picture.path, "" if picture.role else picture.class_name) for picture in pictures)
    twice = sorted(os.path.relpath(path, folder) for (path, _), count in counts.items() if count > 1)
    if twice:
        raise UserError(
            f"Expected each image of {folder} once and in one part of the split; {len(twice):,} are named more than "
            f"once: {some(twice)}. A split that leaks measures nothing: get its files again, or take them away."
        )


def named_files(pictures: Sequence[Picture]) -> list[tuple[ImageFile, Picture]]:
    """Returns the images that count as files ``domain/class/image``, sorted; the same in every form.

    The folder that an image lies in is in its name only if the name would not be unique without it.
    """
    counts = Counter(map(_plain_name, pictures))
    named = []
    for picture in pictures:
        name = _plain_name(picture)
        if counts[name] > 1:
            folder = os.path.basename(os.path.dirname(picture.path))
            name = f"{os.path.dirname(name)}/{folder}/{os.path.basename(name)}"
        named.append((ImageFile(picture.domain, picture.class_name, composed(name), picture.path), picture))
    named.sort(key=lambda pair: pair[0])
    files = unique([file for file, _ in named])
    return list(zip(files, [picture for _, picture in named], strict=True))


def _plain_name(picture: Picture) -> str:
    """Returns ``domain/class/image``; names of models of cars may hold a slash."""
    return f"{picture.domain}/{picture.class_name.replace('/', ' ')}/{os.path.basename(picture.path)}"
