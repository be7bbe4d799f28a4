"""Finds the images of a published data set, in whichever of the known layouts they lie."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedvlp.data.catalog import Description
from fedvlp.data.files.folders import ImageFile, composed, list_images, unique
from fedvlp.data.files.images import is_hidden
from fedvlp.utils.errors import UserError

DEPTH = 3
MOST_FOLDERS = 2_000


@dataclass(frozen=True)
class Tree:
    """The images of a data set as they lie on disk, under the data set's own names.

    Attributes:
        folder: the folder of the domains' folders.
        files: the images of each domain, sorted; named ``domain/class/file`` whatever the layout.
        split_folders: for each domain the folder of a split, such as "train" or "crossval", that the image of a name
            lies in.
    """

    folder: Path
    files: Mapping[str, list[ImageFile]]
    split_folders: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class FoundImage:
    """An image in the folder of a domain.

    Attributes:
        class_name: its class, in the data set's own spelling.
        file: its path below the folder of the class.
        split_folder: the folder of a split, between domain and class, that it lies in; empty without one.
        path: where the file system has it.
    """

    class_name: str
    file: str
    split_folder: str
    path: str


def find_tree(root: Path, description: Description) -> Tree:
    """Returns the images below a root.

    Raises:
        UserError: if domains are missing, or class folders are of another data set; says what was found.
    """
    folder, names = find_domains(root, description)
    files: dict[str, list[ImageFile]] = {}
    split_folders: dict[str, dict[str, str]] = {}
    strangers: set[str] = set()
    for domain, name in sorted(names.items()):
        found, unknown = _sort_out(folder / name, description)
        strangers |= {f"{name}/{other}" for other in unknown}
        named = _named(domain, found)
        files[domain] = [image for image, _ in named]
        split_folders[domain] = {image.name: of for image, of in named if of}
    # A subset lies among the other classes of the larger data set, which are no mistake.
    if strangers and not description.is_subset:
        raise UserError(
            f"Expected the class folders of {description.name} ({some(description.class_names)}) in {folder}; found "
            f"{some(sorted(strangers))} as well. Remove them, or read these images as DomainFolders."
        )
    return Tree(folder, files, split_folders)


def some(names: Sequence[str], most: int = 10) -> str:
    """Returns the first names, and how many more there are.

    >>> some(["a", "b", "c"], most=2)
    'a, b ... and 1 more'
    """
    return ", ".join(names[:most]) + (f" ... and {len(names) - most} more" if len(names) > most else "")


def find_domains(root: Path, description: Description) -> tuple[Path, dict[str, str]]:
    """Returns the folder of the domains nearest to the root, and the name of each domain's folder.

    Raises:
        UserError: if there is no root, or no folder that has all domains.
    """
    check_root(root, description)
    best: tuple[Path, dict[str, str]] = (root, {})
    for folder in nearest_first(root):
        names = _domains_in(folder, description)
        # The first folder with all domains counts: users name the root at various levels.
        if len(names) == len(description.domains):
            return folder, names
        if len(names) > len(best[1]):
            best = folder, names
    folder, names = best
    lacking = [domain for domain in description.domains if domain not in names]
    found = f"{', '.join(names.values())} in {folder}" if names else f"{some(folders_in(root)) or 'no folder'} there"
    raise UserError(
        f"Expected a folder for each domain of {description.name} ({', '.join(description.domains)}) in {root}, or "
        f"up to {DEPTH} folders below it, with images as domain/class/image; found {found}, so "
        f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing. Add them, or check data.root."
    )


def check_root(root: Path, description: Description) -> None:
    """Raises UserError if there is no root."""
    if not root.is_dir():
        raise UserError(
            f"Expected {description.name} in the folder {root}; there is no such folder. Check data.root"
            f"{command_that_gets_it(root, description)}."
        )


def has_domains(root: Path, description: Description) -> bool:
    """Whether all domains of a data set lie below a root."""
    return root.is_dir() and any(
        len(_domains_in(folder, description)) == len(description.domains) for folder in nearest_first(root)
    )


def command_that_gets_it(root: Path, description: Description) -> str:
    """Returns how to get the data set, where a command can."""
    if description.download_source is None:
        return ""
    name = description.config.removeprefix("data/")
    return f", or get it: fedvlp data download {name} --root {shlex.quote(str(root))}, or --data.download true"


def nearest_first(root: Path) -> Iterator[Path]:
    """Yields the root, the folders in it, those in them and so on; each depth in the order of names."""
    level = [root]
    left = MOST_FOLDERS
    for _ in range(DEPTH + 1):
        yield from level
        below: list[Path] = []
        for folder in level:
            below += [folder / name for name in folders_in(folder)]
        level = below[:left]
        left -= len(level)


def folders_in(folder: Path) -> list[str]:
    """Returns the names of the folders in a folder, sorted; none of one that may not be read."""
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not is_hidden(entry.name))
    except OSError:
        return []


def _domains_in(folder: Path, description: Description) -> dict[str, str]:
    """Returns the names of the domains' folders in a folder, by domain.

    Raises:
        UserError: if two folders are the same domain.
    """
    names: dict[str, str] = {}
    for name in folders_in(folder):
        domain = description.domain_of(name)
        if domain is None:
            continue
        if domain in names:
            raise UserError(f"Both {names[domain]} and {name} in {folder} look like the domain {domain}. Keep one.")
        names[domain] = name
    return names


def _sort_out(folder: Path, description: Description) -> tuple[list[FoundImage], set[str]]:
    """Returns the images of a domain's folder, and the class folders that are unknown."""
    found: list[FoundImage] = []
    unknown: set[str] = set()
    for folders_and_file, path in list_images(folder):
        names = [composed(name) for name in folders_and_file]
        split_folder = names[0].casefold() if len(names) > 1 else ""
        if split_folder in description.split_folders:
            names = names[1:]
        else:
            split_folder = ""
        class_name = description.class_of(names[0]) if len(names) > 1 else None
        if class_name is None:
            unknown.add(names[0])
        else:
            found.append(FoundImage(class_name, "/".join(names[1:]), split_folder, path))
    if any(image.split_folder == "train" for image in found):
        # What is in "full" is then in "train" and "crossval" as well.
        found = [image for image in found if image.split_folder != "full"]
    return found, unknown


def _named(domain: str, found: Sequence[FoundImage]) -> list[tuple[ImageFile, str]]:
    """Returns the images of a domain, sorted, with their split folders.

    A split folder is in a name only if the name would not be unique without it, so that the same images have the same
    names in every layout.
    """
    counts = Counter((image.class_name, image.file) for image in found)
    images = {}
    for image in found:
        is_repeated = counts[image.class_name, image.file] > 1
        inside = f"{image.split_folder}/" if image.split_folder and is_repeated else ""
        name = f"{domain}/{image.class_name}/{inside}{image.file}"
        images[image.path] = (ImageFile(domain, image.class_name, name, image.path), image.split_folder)
    ordered = sorted(images.values())
    files = unique([image for image, _ in ordered])
    return list(zip(files, [split_folder for _, split_folder in ordered], strict=True))
