"""Readers of the layouts in which users have a data set, besides folders domain/class/image.

Each returns one :class:`Row` an image of what a part of a layout says; no image file is opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from fedvlp.data.files.images import composed, folders_in, list_images
from fedvlp.utils.errors import UserError

DEPTH = 3
"""How many folders below the root a data set is searched for."""
MOST_FOLDERS = 2_000
SPLIT_FILE_ROLES: Mapping[str, SplitName] = {"train": "train", "val": "validation", "test": "test"}
IGNORED = "images of folders that are no class"


@dataclass(frozen=True, slots=True)
class Row:
    """One image of a data set on disk.

    Attributes:
        domain: its domain.
        class_name: its class, in the data set's own spelling.
        file: its path below the folder of the class, or the name of its file.
        path: where the file system has it; of pixels, the same as ``file``.
        folder: the folder that tells it from another image of this class and name; empty if none does.
        role: what it does by the official split; None where that is not said.
        reason: why it does not count; empty if it does.
        pixels: uint8 of shape [H, W, 3], RGB, where it is no file of its own.
    """

    domain: str
    class_name: str
    file: str
    path: str
    folder: str = ""
    role: SplitName | None = None
    reason: str = ""
    pixels: NDArray[np.uint8] | None = None


def some(names: Sequence[str], most: int = 10) -> str:
    """Returns the first names, and how many more there are.

    >>> some(["a", "b", "c"], most=2)
    'a, b ... and 1 more'
    """
    return ", ".join(names[:most]) + (f" ... and {len(names) - most} more" if len(names) > most else "")


def nearest_first(root: Path) -> Iterator[Path]:
    """Yields the root, the folders in it, those in them and so on; each depth in the order of names."""
    level = [root]
    # A root that is somebody's home folder must not be searched for minutes.
    left = MOST_FOLDERS
    for _ in range(DEPTH + 1):
        yield from level
        below: list[Path] = []
        for folder in level:
            below += [folder / name for name in folders_in(folder)]
        level = below[:left]
        left -= len(level)


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


def _is_there(folder: Path, part: LayoutPart, description: Description) -> bool:
    """Whether a folder has what a part of a layout is recognised by."""
    match part:
        case SplitFile():
            return (folder / part.file).is_file()
        case TorchvisionFolder():
            return all((folder / name).exists() for name in part.holds)
        case ClassFolders():
            return part.is_optional or _has_classes(folder / part.folder, description)
        case ImageLists():
            return all((folder / file).is_file() for file in part.files)
        case PixelBatches():
            return (folder / part.folder).is_dir() or (folder / part.archive).is_file()


def read_layout(folder: Path, layout: Layout, description: Description) -> list[Row]:
    """Returns the images of a data set that has a layout in a folder.

    Raises:
        UserError: if something is missing, damaged or contradicts itself.
    """
    rows: list[Row] = []
    for part in layout.parts:
        match part:
            case SplitFile():
                rows += _split_file(folder, part, description)
            case TorchvisionFolder():
                rows += _torchvision(folder, part, description)
            case ClassFolders():
                rows += _class_folders(folder / part.folder, part, description)
            case ImageLists():
                for file in part.files:
                    rows += _image_list(folder, file, part, description)
            case PixelBatches():
                rows += _pixel_batches(folder, part, description)
    return rows


def _row(domain: str, class_name: str, path: str, role: SplitName | None, reason: str = "") -> Row:
    parent, file = os.path.split(path)
    return Row(domain, class_name, file, path, os.path.basename(parent), role, reason)


def _class_of(name: str, description: Description, source: str) -> str:
    """Returns the class that a name stands for; raises UserError if the data set has no such class."""
    class_name = description.class_of(name)
    if class_name is None:
        raise UserError(
            f"Expected classes of {description.name} ({some(description.class_names, most=5)}) in {source}; found "
            f"{name[:80]!r}. Take the file of {description.name}, or read these images as DomainFolders."
        )
    return class_name


def _checked(rows: list[Row], folder: Path, source: str) -> list[Row]:
    """Returns images that something names; raises UserError unless the file of each is there."""
    missing = [os.path.relpath(row.path, folder) for row in rows if not os.path.isfile(row.path)]
    if missing:
        raise UserError(
            f"{source} names {len(missing):,} images that are not there: {some(sorted(missing))}. Add them below "
            f"{folder}, or remove it if it is of other images."
        )
    return rows


def _has_classes(folder: Path, description: Description) -> bool:
    return any(description.class_of(composed(name)) for name in folders_in(folder))


def _class_folders(folder: Path, part: ClassFolders, description: Description) -> list[Row]:
    """Returns the images of class folders; raises UserError if there are other folders as well."""
    # Without any class an optional part is absent, whatever else lies in its place.
    if part.is_optional and not _has_classes(folder, description):
        return []
    names = [composed(name) for name in folders_in(folder)]
    strangers = [name for name in names if description.class_of(name) is None and name not in part.ignored]
    if strangers:
        raise UserError(
            f"Expected the class folders of {description.name} ({some(description.class_names, most=5)}) in {folder}; "
            f"found {some(strangers)} as well. Remove them, or read these images as DomainFolders."
        )
    # Looked up once a folder: ImageNet has over a million images.
    classes = {name: description.class_of(name) for name in names}
    domain = part.domain or description.domains[0]
    rows = []
    for parts, path in list_images(folder):
        if len(parts) > 1:  # others are stray images beside the folders
            class_folder = composed(parts[0])
            class_name = classes[class_folder]
            if class_name is None:
                rows.append(_row(domain, class_folder, path, None, IGNORED))
            else:
                rows.append(_row(domain, class_name, path, part.role))
    return rows


def _image_list(folder: Path, file: str, part: ImageLists, description: Description) -> list[Row]:
    """Returns the images of one list.

    Raises:
        UserError: if a line is not as it must be, is of another data set, or names an image that is missing.
    """
    path = folder / file
    rows = []
    classes: dict[str, str] = {}  # looked up once: lists have up to half a million lines
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line == part.header:
            continue
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
        rows.append(_row(domain, class_name, _joined(folder, image), role))
    return _checked(rows, folder, str(path))


def _joined(folder: Path, relative: str) -> str:
    """Returns the path of an image that a list names, perhaps as Windows writes it."""
    return os.path.join(folder, *PurePosixPath(relative.replace("\\", "/").lstrip("/")).parts)


def _split_file(folder: Path, part: SplitFile, description: Description) -> list[Row]:
    """Returns the images of CoOp's split.

    Raises:
        UserError: if the file is damaged or of another data set, or names images that are missing.
    """
    path = folder / part.file
    (domain,) = description.domains
    entries: list[tuple[str, str, SplitName]] = []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for split, role in SPLIT_FILE_ROLES.items():
            # Labels are numbered anew here, so the second entry is of no use.
            entries += [(str(image), str(name), role) for image, _, name in content[split]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"Expected {path} to hold the lists train, val and test of [path, label, class name]; it can't be read so "
            f"({type(error).__name__}: {error}). Get it again from CoOp's DATASETS.md, or take it away."
        ) from error
    names = {name for _, name, _ in entries}
    classes = {name: _class_of(name, description, str(path)) for name in sorted(names)}
    images = folder / part.images
    rows = [_row(domain, classes[name], _joined(images, image), role) for image, name, role in entries]
    return _checked(rows, images, str(path))


def _torchvision(folder: Path, part: TorchvisionFolder, description: Description) -> list[Row]:
    """Returns the images that a class of torchvision finds.

    Raises:
        UserError: if the folder has another name than torchvision gives it, its files are damaged, or images are
            missing.
    """
    import torchvision.datasets

    root = _torchvision_root(folder, part, description)
    (domain,) = description.domains
    source = f"torchvision's {part.class_name} in {folder}"
    rows: list[Row] = []
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
        classes = [_class_of(str(name), description, source) for name in images.classes]
        for path, label in (images[index] for index in range(len(images))):
            rows.append(_row(domain, classes[int(label)], path, part.splits.get(split)))
    return _checked(rows, folder, source)


def _torchvision_root(folder: Path, part: TorchvisionFolder, description: Description) -> Path:
    """Returns the folder that torchvision calls the root; raises UserError if it expects another name in it."""
    absolute = Path(os.path.abspath(folder))
    names = PurePosixPath(part.folder).parts
    if absolute.parts[-len(names) :] == names:
        return absolute.parents[len(names) - 1]
    split_files = []
    for layout in description.layouts:
        split_files += [other.file for other in layout.parts if isinstance(other, SplitFile)]
    or_file = f", or put CoOp's {split_files[0]} into it" if split_files else ""
    raise UserError(
        f"torchvision reads {description.name} in a folder {part.folder} only; it is in {absolute}. Rename that "
        f"folder{or_file}."
    )


def _pixel_batches(folder: Path, part: PixelBatches, description: Description) -> list[Row]:
    """Returns the images of CIFAR's files, in their folder or in the archive that they came in.

    Raises:
        UserError: if a file is missing, or is not the one that was published.
    """
    (domain,) = description.domains
    contents = _batch_contents(folder, part)
    batches = {name: _unpickled(name, contents.get(name), part, folder) for name in part.md5}
    classes = [_class_of(name, description, part.names) for name in batches[part.names][part.names_key]]
    rows: list[Row] = []
    for file, role in part.files.items():
        # In a row of 3,072 values all red ones come before the green and blue ones.
        pixels = batches[file]["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        for number, label in enumerate(batches[file][part.labels]):
            name = f"{file}_{number:05d}"
            rows.append(Row(domain, classes[label], name, name, role=role, pixels=pixels[number]))
    return rows


def _batch_contents(folder: Path, part: PixelBatches) -> dict[str, bytes]:
    """Returns the bytes of each file, by its name."""
    unpacked = folder / part.folder
    if unpacked.is_dir():
        return {name: (unpacked / name).read_bytes() for name in part.md5 if (unpacked / name).is_file()}
    contents = {}
    archive_path = folder / part.archive
    try:
        with tarfile.open(archive_path, "r:gz") as archive:
            for member in archive:
                if file := archive.extractfile(member):
                    contents[PurePosixPath(member.name).name] = file.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise UserError(f"The archive {archive_path} can't be read ({error}). It is damaged: get it again.") from error
    return contents


def _unpickled(name: str, content: bytes | None, part: PixelBatches, folder: Path) -> dict[str, Any]:
    """Returns what a pickle holds that has the published MD5; raises UserError, before it is read, for any other."""
    path = folder / part.folder / name
    if content is None:
        raise UserError(f"Expected the file {path}; it is missing. Extract the archive {part.archive} again.")
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    # A pickle may run any code, so none is loaded but those that the publisher made.
    if digest != part.md5[name]:
        raise UserError(
            f"Expected {path} with the published MD5 {part.md5[name]}; it has {digest}. It is damaged or was changed: "
            "get it again."
        )
    batch: dict[str, Any] = pickle.loads(content, encoding="latin1")  # it is of Python 2
    return batch
