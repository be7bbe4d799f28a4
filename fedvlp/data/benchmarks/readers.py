"""Readers of the layouts that a data set may have besides folders domain/class/image.

Each makes a manifest, one :class:`Picture` an image, of what a part of a layout says; no image file is opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import tarfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvlp.data.benchmarks.layouts import nearest_first, some
from fedvlp.data.catalog import Description, SplitName
from fedvlp.data.catalog.description import (
    ClassFolders,
    ImageLists,
    Layout,
    LayoutPart,
    PixelBatches,
    SplitFile,
    TorchvisionFolder,
)
from fedvlp.data.files.folders import ImageFile, composed, list_images, unique
from fedvlp.data.files.images import is_hidden
from fedvlp.utils.errors import UserError

SPLIT_FILE_ROLES: Mapping[str, SplitName] = {"train": "train", "val": "validation", "test": "test"}
IGNORED = "images of folders that are no class"
SIDE = 32
"""Width and height of an image of CIFAR, in pixels."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One image of a data set on disk.

    Attributes:
        domain: its domain.
        class_name: its class, in the data set's own spelling.
        path: its file; of pixels, the name of the file that they are in and their row in it.
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


def find_layout(root: Path, description: Description) -> tuple[Path, Layout] | None:
    """Returns the folder nearest to the root in which a data set has one of its layouts, and the layout.

    Of several layouts in one folder the first of the description is taken.
    """
    if not description.layouts or not root.is_dir():
        return None
    for folder in nearest_first(root):
        for layout in description.layouts:
            if all(_is_there(folder, part, description) for part in layout.parts):
                return folder, layout
    return None


def read_layout(folder: Path, layout: Layout, description: Description) -> list[tuple[ImageFile, Picture]]:
    """Returns the images of a data set, each with its file's name ``domain/class/image``, sorted by these names.

    Names are the same in every layout. The folder of an image is in its name only if the name would not be unique
    without it.

    Raises:
        UserError: if something is missing, damaged or contradicts itself.
    """
    pictures: list[Picture] = []
    for part in layout.parts:
        is_absent = isinstance(part, ClassFolders) and not _has_class_folders(folder, part, description)
        pictures += [] if is_absent else _read(folder, part, description)
    _check_roles(pictures, folder)
    counts = Counter(map(_short_name, pictures))
    named = []
    for picture in pictures:
        name = _short_name(picture)
        if counts[name] > 1:
            parent = os.path.basename(os.path.dirname(picture.path))
            name = f"{os.path.dirname(name)}/{parent}/{os.path.basename(name)}"
        named.append((ImageFile(picture.domain, picture.class_name, composed(name), picture.path), picture))
    named.sort(key=lambda pair: pair[0])
    files = unique([file for file, _ in named])
    return list(zip(files, [picture for _, picture in named], strict=True))


def _short_name(picture: Picture) -> str:
    """Returns ``domain/class/image``; names of models of cars may hold a slash."""
    return f"{picture.domain}/{picture.class_name.replace('/', ' ')}/{os.path.basename(picture.path)}"


def _is_there(folder: Path, part: LayoutPart, description: Description) -> bool:
    """Whether a folder has what a part of a layout is recognised by."""
    match part:
        case SplitFile():
            return (folder / part.file).is_file()
        case TorchvisionFolder():
            return all((folder / name).exists() for name in part.holds)
        case ClassFolders():
            return part.is_optional or _has_class_folders(folder, part, description)
        case ImageLists():
            return all((folder / file).is_file() for file in part.files)
        case PixelBatches():
            return (folder / part.folder).is_dir() or (folder / part.archive).is_file()


def _read(folder: Path, part: LayoutPart, description: Description) -> list[Picture]:
    """Returns the images that one part of a layout names."""
    match part:
        case SplitFile():
            return _read_split_file(folder, part, description)
        case TorchvisionFolder():
            return _read_torchvision(folder, part, description)
        case ClassFolders():
            return _read_class_folders(folder, part, description)
        case ImageLists():
            return list(chain.from_iterable(_read_list(folder, file, part, description) for file in part.files))
        case PixelBatches():
            return _read_pixel_batches(folder, part, description)


def _check_roles(pictures: Sequence[Picture], folder: Path) -> None:
    """Raises UserError if an image has two roles, or is named twice."""
    # Without roles an image may have two classes: nine of ImageCLEF-DA show a bottle and a person, or a bus and a car.
    counts = Counter((picture.path, "" if picture.role else picture.class_name) for picture in pictures)
    repeated = sorted(os.path.relpath(path, folder) for (path, _), count in counts.items() if count > 1)
    if repeated:
        raise UserError(
            f"Expected each image of {folder} once and in one part of the split; {len(repeated):,} are named more than "
            f"once: {some(repeated)}. A split that leaks measures nothing: get its files again, or take them away."
        )


def _class_of(name: str, description: Description, source: str) -> str:
    """Returns the class that a name stands for; raises UserError if the data set has no such class."""
    class_name = description.class_of(name)
    if class_name is None:
        raise UserError(
            f"Expected classes of {description.name} ({some(description.class_names, most=5)}) in {source}; found "
            f"{name[:80]!r}. Take the file of {description.name}, or read these images as DomainFolders."
        )
    return class_name


def _path_inside(folder: Path, relative: str, source: Path) -> str:
    """Returns the path of an image that a file names; raises UserError if it leads out of the folder."""
    path = PurePosixPath(relative.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or not relative.strip("./"):
        raise UserError(
            f"Expected paths below {folder} in {source}; found {relative[:80]!r}. Get the file from its publisher."
        )
    return os.path.join(folder, *path.parts)


def _check_there(pictures: Sequence[Picture], folder: Path, source: str) -> None:
    """Raises UserError unless the file of each image that something names is there."""
    missing = [os.path.relpath(picture.path, folder) for picture in pictures if not os.path.isfile(picture.path)]
    if missing:
        raise UserError(
            f"{source} names {len(missing):,} images that are not there: {some(sorted(missing))}. Add them below "
            f"{folder}, or remove it if it is of other images."
        )


def _has_class_folders(folder: Path, part: ClassFolders, description: Description) -> bool:
    """Whether a folder of at least one class is there."""
    try:
        with os.scandir(folder / part.folder) as entries:
            return any(entry.is_dir() and description.class_of(composed(entry.name)) for entry in entries)
    except OSError:
        return False


def _read_class_folders(folder: Path, part: ClassFolders, description: Description) -> list[Picture]:
    """Returns the images of class folders; raises UserError if there are other folders as well."""
    inside = folder / part.folder
    domain = part.domain or description.domains[0]
    with os.scandir(inside) as entries:
        names = sorted(composed(entry.name) for entry in entries if entry.is_dir() and not is_hidden(entry.name))
    strangers = [name for name in names if description.class_of(name) is None and name not in part.ignored]
    if strangers:
        raise UserError(
            f"Expected the class folders of {description.name} ({some(description.class_names, most=5)}) in {inside}; "
            f"found {some(strangers)} as well. Remove them, or read these images as DomainFolders."
        )
    classes: dict[str, str | None] = {}
    pictures: list[Picture] = []
    for parts, path in list_images(inside):
        if len(parts) < 2:  # a stray image beside the folders
            continue
        class_name = classes.setdefault(parts[0], description.class_of(composed(parts[0])))
        if class_name is None:
            pictures.append(Picture(domain, parts[0], path, reason=IGNORED))
        else:
            pictures.append(Picture(domain, class_name, path, part.role))
    return pictures


def _read_list(folder: Path, file: str, part: ImageLists, description: Description) -> list[Picture]:
    """Returns the images of one list.

    Raises:
        UserError: if a line is not as it must be, is of another data set, or names an image that is missing.
    """
    path = folder / file
    pictures = []
    classes: dict[str, str] = {}  # looked up once: lists have up to half a million lines
    for number, line in _lines(path, part):
        match = re.fullmatch(part.line, line)
        if match is None:
            raise UserError(
                f"Expected an image of {description.name} in line {number} of {path}; found {line[:80]!r}. Get the "
                "file from its publisher again."
            )
        groups = match.groupdict()
        if groups["class"] not in classes:
            classes[groups["class"]] = _class_of(groups["class"], description, f"line {number} of {path}")
        class_name = classes[groups["class"]]
        domain = description.domain_of(groups["domain"]) if "domain" in groups else description.domains[0]
        if domain is None:
            raise UserError(
                f"Expected domains of {description.name} ({', '.join(description.domains)}) in {path}; found "
                f"{groups['domain']!r}. Get the file from its publisher again."
            )
        image = part.image.format(**groups, class_name=class_name)
        role = part.parts.get(groups.get("part", ""), part.files[file])
        pictures.append(Picture(domain, class_name, _path_inside(folder, image, path), role))
    _check_there(pictures, folder, str(path))
    return pictures


def _lines(path: Path, part: ImageLists) -> list[tuple[int, str]]:
    """Returns the numbered lines of a list, without empty ones and the header, which is checked."""
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not part.header:
        return lines
    if not lines or lines[0][1] != part.header:
        first = repr(lines[0][1][:80]) if lines else "an empty file"
        raise UserError(f"Expected {path} to begin with {part.header!r}; found {first}. Get it again.")
    return lines[1:]


def _read_split_file(folder: Path, part: SplitFile, description: Description) -> list[Picture]:
    """Returns the images of CoOp's split.

    Raises:
        UserError: if the file is damaged or of another data set, contradicts itself, or names images that are missing.
    """
    path = folder / part.file
    images = folder / part.images
    (domain,) = description.domains
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        entries = {split: list(map(_entry, content[split])) for split in SPLIT_FILE_ROLES}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"Expected {path} to hold the lists train, val and test of [path, label, class name]; it can't be read so "
            f"({type(error).__name__}: {error}). Get it again from CoOp's DATASETS.md, or take it away."
        ) from error
    pictures: list[Picture] = []
    labels: dict[str, set[int]] = defaultdict(set)
    classes: dict[str, str] = {}
    for split, role in SPLIT_FILE_ROLES.items():
        for image, label, name in entries[split]:
            if name not in classes:
                classes[name] = _class_of(name, description, str(path))
            labels[classes[name]].add(label)
            pictures.append(Picture(domain, classes[name], _path_inside(images, image, path), role))
    _check_labels(labels, path)
    _check_there(pictures, images, str(path))
    return pictures


def _entry(entry: Any) -> tuple[str, int, str]:
    """Returns one entry of a list; raises ValueError if it is none."""
    image, label, name = entry
    if not (isinstance(image, str) and type(label) is int and isinstance(name, str)):
        raise ValueError(f"an entry is {str(entry)[:80]}")
    return image, label, name


def _check_labels(labels: Mapping[str, set[int]], path: Path) -> None:
    """Raises UserError unless each class has one label and each label one class; which is whose does not matter."""
    owners: dict[int, list[str]] = defaultdict(list)
    wrong = []
    for name, numbers in labels.items():
        if len(numbers) > 1:
            wrong.append(f"{name} has {', '.join(map(str, sorted(numbers)))}")
        for number in numbers:
            owners[number].append(name)
    wrong += [f"{' and '.join(names)} both have {number}" for number, names in owners.items() if len(names) > 1]
    if wrong:
        raise UserError(f"The labels in {path} contradict its class names: {some(wrong, most=5)}. Get it again.")


def _read_torchvision(folder: Path, part: TorchvisionFolder, description: Description) -> list[Picture]:
    """Returns the images that a class of torchvision finds.

    Raises:
        UserError: if the folder has another name than torchvision gives it, its files are damaged, or images are
            missing.
    """
    import torchvision.datasets

    root = _torchvision_root(folder, part, description)
    (domain,) = description.domains
    source = f"torchvision's {part.class_name} in {folder}"
    pictures: list[Picture] = []
    for split in part.splits or ("",):
        options = {"split": split} if split else {}
        try:
            # Its loader is given the path of an image, and what it returns is passed on: no image is opened.
            images = getattr(torchvision.datasets, part.class_name)(str(root), loader=os.fspath, **options)
        except Exception as error:  # damaged lists raise nearly every type in torchvision and scipy
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(
                f"torchvision's {part.class_name} can't read {root / part.folder} ({reason}). Files in it are missing "
                "or damaged: get them again."
            ) from error
        names = [_class_of(str(name), description, source) for name in images.classes]
        for path, label in (images[index] for index in range(len(images))):
            pictures.append(Picture(domain, names[int(label)], path, part.splits.get(split)))
    _check_there(pictures, folder, source)
    return pictures


def _torchvision_root(folder: Path, part: TorchvisionFolder, description: Description) -> Path:
    """Returns the folder that torchvision calls the root; raises UserError if it expects another name in it."""
    absolute = Path(os.path.abspath(folder))
    names = PurePosixPath(part.folder).parts
    if absolute.parts[-len(names) :] != names:
        parts = chain.from_iterable(layout.parts for layout in description.layouts)
        files = [other.file for other in parts if isinstance(other, SplitFile)]
        or_file = f", or put CoOp's {files[0]} into it" if files else ""
        raise UserError(
            f"torchvision reads {description.name} in a folder {part.folder} only; it is in {absolute}. Rename that "
            f"folder{or_file}."
        )
    return absolute.parents[len(names) - 1]


def _read_pixel_batches(folder: Path, part: PixelBatches, description: Description) -> list[Picture]:
    """Returns the images of CIFAR's files, in their folder or in the archive that they came in.

    Raises:
        UserError: if a file is missing, or is not the one that was published.
    """
    (domain,) = description.domains
    contents = _batch_files(folder, part)
    classes = [_class_of(name, description, part.names) for name in contents[part.names][part.names_key]]
    pictures: list[Picture] = []
    for file, role in part.files.items():
        # In a row all red values come before the green and blue ones.
        by_colour = contents[file]["data"].reshape(-1, 3, SIDE, SIDE)
        pixels = np.moveaxis(by_colour, 1, -1)
        for row, label in enumerate(contents[file][part.labels]):
            pictures.append(Picture(domain, classes[label], f"{file}_{row:05d}", role, pixels=pixels[row]))
    return pictures


def _batch_files(folder: Path, part: PixelBatches) -> dict[str, dict[str, Any]]:
    """Returns what each file holds."""
    place = folder / part.folder
    if place.is_dir():
        return {name: _unpickled(_content(place / name), part.md5[name], place / name) for name in part.md5}
    place = folder / part.archive
    try:
        with tarfile.open(place, "r:gz") as archive:
            names = archive.getnames()
            contents = {}
            for name in part.md5:
                member = f"{part.folder}/{name}"
                file = archive.extractfile(member) if member in names else None
                contents[name] = file.read() if file else None
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise UserError(f"The archive {place} can't be read ({error}). It is damaged: get it again.") from error
    return {name: _unpickled(content, part.md5[name], place / name) for name, content in contents.items()}


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _unpickled(content: bytes | None, published: str, path: Path) -> dict[str, Any]:
    """Returns what a pickle holds that has the published MD5; raises UserError, before it is read, for any other."""
    if content is None:
        raise UserError(f"Expected the file {path}; it is missing. Extract the archive again.")
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    # A pickle may run any code, so none is loaded but those that the publisher made.
    if digest != published:
        raise UserError(
            f"Expected {path} with the published MD5 {published}; it has {digest}. It is damaged or was changed: "
            "get it again."
        )
    batch: dict[str, Any] = pickle.loads(content, encoding="latin1")  # it is of Python 2
    return batch
