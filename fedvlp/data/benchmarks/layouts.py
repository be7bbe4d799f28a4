"""Find a published data set below a root and read its layout, without opening any image file."""

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from fedvlp.catalog.description import (
    Description,
    DomainTree,
    FolderPerClass,
    ImageLists,
    Layout,
    SplitFile,
    SplitName,
    TorchvisionFolder,
    TorchvisionPixels,
)
from fedvlp.core.roles import ImageRole
from fedvlp.data.files.images import compose_name, folders_in, list_images
from fedvlp.data.listed import ImageFile
from fedvlp.utils.errors import UserError

DEPTH = 3
"""Depth of the folders below the root that are searched for a data set."""
MOST_FOLDERS = 2_000
KNOWN_BAD = "known bad images"
SPLIT_FILE_ROLES: Mapping[str, SplitName] = {"train": "train", "val": "validation", "test": "test"}


def shorten(names: Sequence[str], most: int = 10) -> str:
    """List the first names and count the rest.

    >>> shorten(["a", "b", "c"], most=2)
    'a, b ... and 1 more'
    """
    return ", ".join(names[:most]) + (f" ... and {len(names) - most} more" if len(names) > most else "")


def walk_folders(root: Path) -> Iterator[Path]:
    """Iterate over the root and its subfolders, level by level, each level in the order of names."""
    level = [root]
    # The limit matters for a whole home folder, which would take minutes.
    left = MOST_FOLDERS
    for _ in range(DEPTH + 1):
        yield from level
        below: list[Path] = []
        for folder in level:
            below += [folder / name for name in folders_in(folder)]
        level = below[:left]
        left -= len(level)


def find_layout(root: Path, description: Description) -> tuple[Path, Layout] | None:
    """Find the folder nearest to the root that has a layout of a data set, and the first such layout."""
    for folder in walk_folders(root):
        for layout in description.layouts:
            if all(_exists(folder, part, description) for part in layout.parts):
                return folder, layout
    return None


def _exists(folder: Path, part: object, description: Description) -> bool:
    match part:
        case DomainTree():
            return len(domains_in(folder, description)) == len(description.domains)
        case SplitFile():
            return (folder / part.file).is_file()
        case TorchvisionFolder():
            return all((folder / name).exists() for name in part.holds)
        case FolderPerClass():
            return part.is_optional or _has_classes(folder / part.folder, description)
        case ImageLists():
            return all((folder / file).is_file() for file in part.files)
    return False


def domains_in(folder: Path, description: Description) -> dict[str, str]:
    """Map each domain to the name of its subfolder; raise UserError if two subfolders are the same domain."""
    names: dict[str, str] = {}
    for name in folders_in(folder):
        domain = description.match_domain(name)
        if domain in names:
            raise UserError(f"Both {names[domain]} and {name} in {folder} look like the domain {domain}. Keep one.")
        if domain is not None:
            names[domain] = name
    return names


def read_layout(folder: Path, layout: Layout, description: Description) -> list[ImageFile]:
    """List the images of a layout in a folder, named ``domain/class/image`` and sorted.

    Raises:
        UserError: If a part is missing, damaged or inconsistent.
    """
    files: list[ImageFile] = []
    for part in layout.parts:
        match part:
            case SplitFile():
                files += _split_file(folder, part, description)
            case TorchvisionPixels():
                files += _torchvision_pixels(folder, part, description)
            case TorchvisionFolder():
                files += _torchvision(folder, part, description)
            case FolderPerClass():
                files += _class_folders(folder / part.folder, part, description)
            case ImageLists():
                for list_file in part.files:
                    files += _image_list(folder, list_file, part, description)
    # Names are the same in all layouts, so they contain a folder only if needed to be unique.
    counts = Counter(file.name for file in files)
    for index, file in enumerate(files):
        if counts[file.name] > 1:
            class_folder, name = os.path.split(file.name)
            parent = compose_name(os.path.basename(os.path.dirname(file.path)))
            files[index] = replace(file, name=f"{class_folder}/{parent}/{name}")
    return sorted(files)


def _image_file(domain: str, class_name: str, path: str, role: SplitName | None) -> ImageFile:
    # Names of car models may contain a slash.
    name = compose_name(f"{domain}/{class_name.replace('/', ' ')}/{os.path.basename(path)}")
    return ImageFile(domain, class_name, name, path, role)


def find_domain(name: str, description: Description, source: str) -> str:
    """Find the domain that a file names; raise UserError if the data set does not have it."""
    domain = description.match_domain(name)
    if domain is None:
        raise UserError(
            f"Expected domains of {description.name} ({', '.join(description.domains)}) in {source}; found "
            f"{name[:80]!r}. Download the file from its publisher again."
        )
    return domain


def find_class(name: str, description: Description, source: str) -> str:
    """Find the class that a file names; raise UserError if the data set does not have it."""
    class_name = description.match_class(name)
    if class_name is None:
        raise UserError(
            f"Expected classes of {description.name} ({shorten(description.class_names, most=5)}) in {source}; found "
            f"{name[:80]!r}. Use the file of {description.name}, or read these images as DomainFolders."
        )
    return class_name


def _check_exist(files: list[ImageFile], folder: Path, source: str) -> list[ImageFile]:
    missing = [os.path.relpath(file.path, folder) for file in files if not os.path.isfile(file.path)]
    if missing:
        raise UserError(
            f"{source} lists {len(missing):,} images that do not exist: {shorten(sorted(missing))}. Add them below "
            f"{folder}, or remove the lists if they belong to other images."
        )
    return files


def _has_classes(folder: Path, description: Description) -> bool:
    return any(description.match_class(compose_name(name)) for name in folders_in(folder))


def check_unknown_folders(unknown: Sequence[str], folder: Path, description: Description) -> None:
    """Raise UserError if there are folders that are not classes of the data set."""
    if unknown:
        raise UserError(
            f"Expected the class folders of {description.name} ({shorten(description.class_names, most=7)}) in "
            f"{folder}; found {shorten(unknown)} as well. Remove them, or read these images as DomainFolders."
        )


def _class_folders(folder: Path, part: FolderPerClass, description: Description) -> list[ImageFile]:
    # An optional part is missing if its folder has no class.
    if part.is_optional and not _has_classes(folder, description):
        return []
    # Classes are looked up once per folder, since ImageNet has over a million images.
    classes = {name: description.match_class(name) for name in map(compose_name, folders_in(folder))}
    unknown = [name for name, class_name in classes.items() if class_name is None and name not in part.ignored]
    check_unknown_folders(unknown, folder, description)
    domain = part.domain or description.domains[0]
    files = []
    for parts, path in list_images(folder):
        if len(parts) > 1:  # otherwise a stray image outside the class folders
            name = compose_name(parts[0])
            files.append(_image_file(domain, classes[name] or name, path, part.role))
    return files


def _image_list(folder: Path, file: str, part: ImageLists, description: Description) -> list[ImageFile]:
    path = folder / file
    files = []
    classes: dict[str, str] = {}  # looked up once, since lists have up to half a million lines
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line == part.header:
            continue
        match = re.fullmatch(part.line, line)
        if match is None:
            raise UserError(
                f"Expected an image of {description.name} in line {number} of {path}; found {line[:80]!r}. Download "
                "the file from its publisher again."
            )
        groups = match.groupdict()
        if groups["class"] not in classes:
            classes[groups["class"]] = find_class(groups["class"], description, f"line {number} of {path}")
        class_name = classes[groups["class"]]
        domain = description.domains[0]
        if "domain" in groups:
            domain = find_domain(groups["domain"], description, str(path))
        image = part.image.format(**groups, class_name=class_name)
        role = part.parts.get(groups.get("part", ""), part.files[file])
        files.append(_image_file(domain, class_name, _join_path(folder, image), role))
    return _check_exist(files, folder, str(path))


def _join_path(folder: Path, relative: str) -> str:
    """Join a folder and an image path from a list, which may have Windows separators."""
    return os.path.join(folder, *PurePosixPath(relative.replace("\\", "/").lstrip("/")).parts)


def _split_file(folder: Path, part: SplitFile, description: Description) -> list[ImageFile]:
    path = folder / part.file
    (domain,) = description.domains
    entries: list[tuple[str, str, SplitName]] = []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for split, role in SPLIT_FILE_ROLES.items():
            # The description numbers the classes, so the second entry is not needed.
            entries += [(str(image), str(name), role) for image, _, name in content[split]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"Expected the lists train, val and test of [path, label, class name] in {path}, but they can't be read "
            f"({type(error).__name__}: {error}). Download it again from CoOp's DATASETS.md, or remove it."
        ) from error
    classes = {name: find_class(name, description, str(path)) for name in sorted({name for _, name, _ in entries})}
    images = folder / part.images
    files = [_image_file(domain, classes[name], _join_path(images, image), role) for image, name, role in entries]
    return _check_exist(files, images, str(path))


def _torchvision(folder: Path, part: TorchvisionFolder, description: Description) -> list[ImageFile]:
    (domain,) = description.domains
    source = f"torchvision's {part.class_name} in {folder}"
    files: list[ImageFile] = []
    for split in part.splits or ("",):
        options = {"split": split} if split else {}
        # The loader returns the path of an image, so that no image is opened.
        images = _open_with_torchvision(folder, part, loader=os.fspath, **options)
        classes = [find_class(str(name), description, source) for name in images.classes]
        for path, label in (images[index] for index in range(len(images))):
            files.append(_image_file(domain, classes[int(label)], path, part.splits.get(split)))
    return _check_exist(files, folder, source)


def _torchvision_pixels(folder: Path, part: TorchvisionPixels, description: Description) -> list[ImageFile]:
    (domain,) = description.domains
    files: list[ImageFile] = []
    for split, role in part.splits.items():
        # CIFAR's files are pickles, which may run any code, so torchvision reads only files with the published MD5.
        images = _open_with_torchvision(folder, part, train=split == "train")
        classes = [find_class(name, description, part.folder) for name in images.classes]
        names = [name for name, _ in (images.train_list if split == "train" else images.test_list)]
        count = len(images) // len(names)
        for row, (pixels, label) in enumerate(zip(images.data, images.targets, strict=True)):
            image = _image_file(domain, classes[label], f"{names[row // count]}_{row % count:05d}", role)
            files.append(replace(image, pixels=pixels))
    return files


def _open_with_torchvision(folder: Path, part: TorchvisionFolder, **options: Any) -> Any:
    import torchvision.datasets

    # torchvision appends the folder's path to the root.
    root = Path(os.path.abspath(folder)).parents[len(PurePosixPath(part.folder).parts) - 1]
    try:
        return getattr(torchvision.datasets, part.class_name)(str(root), **options)
    except Exception as error:  # torchvision and scipy raise many types for damaged lists
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"torchvision's {part.class_name} can't read {root / part.folder} ({reason}). Its files are missing or "
            "damaged, so download them again."
        ) from error


class ListFile(NamedTuple):
    """A list ``<domain>_<ending>.txt`` of a domain's images with one role."""

    path: Path
    domain: str
    ending: str
    role: SplitName


def read_tree(
    root: Path, folder: Path, tree: DomainTree, description: Description
) -> tuple[list[ImageFile], str, dict[str, list[str]]]:
    """Read the images and the official split of the tree in a folder at or below the root.

    Returns:
        The images, the parts of the official split (empty if there is none), and the names of skipped images by reason.

    Raises:
        UserError: If class folders belong to another data set, or a list contradicts another list or the folders.
    """
    images, split_folders = _images_below(folder, tree, description)
    # Folders near the images come first.
    bases = dict.fromkeys((folder, folder.parent, root))
    list_folders = [base / inside for base, inside in product(bases, tree.list_folders)]
    lists: list[ListFile] = []
    trained = {image.domain for image in images if image.role == "train"}
    # Folders between domain and class are the split if each domain has training images.
    if len(trained) == len(description.domains):
        title = "/".join(name for name in tree.split_folders if name in split_folders)
    else:
        lists = _find_lists(list_folders, tree, description)
        title = "/".join(dict.fromkeys(file.ending.removesuffix("_kfold") for file in lists))
    roles: Mapping[str, ImageRole | None] = {image.name: image.role for image in images}
    if lists:
        roles = _read_lists(lists, images, description)
    # Cleaned versions list the remaining images, other versions list the duplicates.
    duplicates: set[str] = set()
    for path in [list_folder / tree.duplicates_list for list_folder in list_folders if tree.duplicates_list]:
        if path.is_file():
            duplicates |= set(map(str.strip, path.read_text(encoding="utf-8").splitlines()))
    used: list[ImageFile] = []
    skipped: dict[str, list[str]] = defaultdict(list)
    for image in images:
        if image.name in description.known_bad:
            skipped[KNOWN_BAD].append(image.name)
        elif image.name in duplicates:
            skipped["known duplicates"].append(image.name)
        elif image.name not in roles:
            skipped["images that are in no list"].append(image.name)
        else:
            used.append(replace(image, role=roles[image.name] if title else None))
    return used, title, dict(skipped)


def _images_below(folder: Path, tree: DomainTree, description: Description) -> tuple[list[ImageFile], set[str]]:
    """List the images of all domains, sorted, with the roles of their split folders, and the split folders."""
    images: list[ImageFile] = []
    used: set[str] = set()
    unknown: set[str] = set()
    for domain, domain_folder in domains_in(folder, description).items():
        below = set(map(str.casefold, folders_in(folder / domain_folder)))
        # "full" is "train" and "crossval" together.
        skipped = "full" if "train" in below else None
        in_domain: list[tuple[str, ImageFile]] = []
        for folders_and_file, path in list_images(folder / domain_folder):
            names = [compose_name(name) for name in folders_and_file]
            split_folder = ""
            if len(names) > 1 and names[0].casefold() in tree.split_folders:
                split_folder = names.pop(0).casefold()
            class_name = description.match_class(names[0]) if len(names) > 1 else None
            if class_name is None:
                unknown.add(f"{domain_folder}/{names[0]}")
            elif not split_folder or split_folder != skipped:
                name = "/".join([domain, class_name, *names[1:]])
                role = tree.split_folders.get(split_folder)
                in_domain.append((split_folder, ImageFile(domain, class_name, name, path, role)))
        used |= {split_folder for split_folder, _ in in_domain}
        counts = Counter(image.name for _, image in in_domain)
        for split_folder, image in in_domain:
            # Names contain the split folder only if needed to be unique.
            if split_folder and counts[image.name] > 1:
                inside = image.name.removeprefix(f"{domain}/{image.class_name}/")
                image = replace(image, name=f"{domain}/{image.class_name}/{split_folder}/{inside}")
            images.append(image)
    # A subset may be stored with the other classes of the larger data set.
    if not description.is_subset:
        check_unknown_folders(sorted(unknown), folder, description)
    return sorted(images), used


def _find_lists(folders: Sequence[Path], tree: DomainTree, description: Description) -> list[ListFile]:
    """Find the lists of the first folder and style with any, since lists from several sources do not mix."""
    for folder, style in product(folders, tree.lists):
        lists = []
        for (ending, role), path in product(style.items(), sorted(folder.glob("*.txt"))):
            stem = path.stem.casefold()
            domain = description.match_domain(stem.removesuffix(f"_{ending}"))
            if stem.endswith(f"_{ending}") and domain:
                lists.append(ListFile(path, domain, ending, role))
        if lists:
            return lists
    return []


def _read_lists(
    lists: Sequence[ListFile], images: Sequence[ImageFile], description: Description
) -> dict[str, SplitName]:
    trained = {file.domain for file in lists if file.role == "train"}
    if missing := [domain for domain in description.domains if domain not in trained]:
        raise UserError(
            f"Expected a list of training images for each domain of {description.name} next to {lists[0].path}; found "
            f"none for {', '.join(missing)}. Add the lists, or remove all of them."
        )
    lists_by_name: dict[str, ListFile] = {}
    leaks = []
    for file in lists:
        for name in _read_list(file, images, description):
            first = lists_by_name.setdefault(name, file)
            if first.role != file.role:
                leaks.append(f"{name} ({first.path.name}, {file.path.name})")
    if leaks:
        raise UserError(
            f"Expected each image in one part of the split; {len(leaks)} are in two: {shorten(leaks)}. Correct the "
            "lists, or draw a split with data.split=stratified."
        )
    return {name: file.role for name, file in lists_by_name.items()}


def _read_list(file: ListFile, images: Sequence[ImageFile], description: Description) -> list[str]:
    image_names = {}
    for image in images:
        if image.domain == file.domain:
            image_names[image.class_name, image.name.rsplit("/", 1)[-1]] = image.name
    names: list[str] = []
    missing: list[str] = []
    text = file.path.read_text(encoding="utf-8", errors="surrogateescape")
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line:
            continue
        # File names may contain spaces. Lists number the classes in various ways, so classes are taken from paths.
        # Paths may have been written on Windows, or with the folders of another machine.
        path, _, label = line.rpartition(" ")
        folders = path.strip().replace("\\", "/").split("/")
        if len(folders) < 2 or not label.isdecimal():
            raise UserError(
                f"Expected 'domain/class/image label' in line {number} of {file.path}, such as 'photo/dog/1.jpg 1'; "
                f"found {line[:80]!r}. Correct or remove the list."
            )
        domain = description.match_domain(folders[-3]) if len(folders) > 2 else None
        class_name = description.match_class(folders[-2])
        name = image_names.get((class_name or "", folders[-1]))
        if name is not None and domain in (None, file.domain):
            names.append(name)
        # Lists of the larger data set also name its other classes.
        elif not (class_name is None and description.is_subset) and not path.endswith(description.known_bad):
            missing.append(f"{path} (line {number})")
    if missing:
        raise UserError(
            f"{file.path} lists {len(missing)} images that are not in {file.domain}: {shorten(missing)}. "
            "Add them, or remove the list if it belongs to other images."
        )
    return names
