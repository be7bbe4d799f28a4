"""A published data set as it is on disk: its images, its official split, and what was left out of it and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvlp.data.benchmarks.layouts import (
    DEPTH,
    check_root,
    command_that_gets_it,
    find_tree,
    folders_in,
    has_domains,
    some,
)
from fedvlp.data.benchmarks.official import Roles, list_places, split_of_folders, split_of_lists
from fedvlp.data.benchmarks.readers import find_layout, read_layout
from fedvlp.data.catalog import Description
from fedvlp.data.catalog.description import Layout
from fedvlp.data.files.folders import ImageFile
from fedvlp.data.splits import Role
from fedvlp.utils.errors import UserError

KNOWN_BAD = "known bad images"


@dataclass(frozen=True)
class OnDisk:
    """A data set on disk.

    Attributes:
        folder: the folder of the domains' folders.
        files: the images of each domain, sorted.
        roles: the official role of each image by domain and name; empty without an official split.
        split: the parts of the official split, such as "train/crossval"; empty without one.
        left_out: images that are on disk but do not count, by the reason.
        may_have_duplicates: whether nothing on disk says which of its known duplicates to leave out.
        layout: the one in which it was read; None for folders domain/class/image.
        pixels: the images of a domain, uint8 of shape [N, H, W, 3], in the order of ``files``, if they are no files.
    """

    folder: Path
    files: Mapping[str, list[ImageFile]]
    roles: Roles
    split: str
    left_out: Mapping[str, list[str]]
    may_have_duplicates: bool = False
    layout: Layout | None = None
    pixels: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What was left out, one line for each reason, and what should have been."""
        notes = [f"left out {len(names)} {reason}: {some(names, most=3)}" for reason, names in self.left_out.items()]
        if self.may_have_duplicates:
            notes.append("neither lists nor a list of duplicates are there, so images of the uncleaned version may be")
        return notes


def read_on_disk(root: Path, description: Description) -> OnDisk:
    """Reads which images there are, and the official split; opens no image file.

    Raises:
        UserError: if layout or lists are not as they must be.
    """
    match = find_layout(root, description)
    if match is not None:
        return _in_layout(*match, description)
    # A folder of classes alone could be any data set, so nothing is guessed.
    if not description.is_tree:
        raise _no_layout(root, description)
    return _in_tree(root, description)


def is_on_disk(root: Path, description: Description) -> bool:
    """Whether a data set is below a root in one of its layouts, complete or not."""
    if find_layout(root, description) is not None:
        return True
    return description.is_tree and has_domains(root, description)


def splits_looked_for(root: Path, folder: Path, description: Description) -> str:
    """Returns what an official split is known by, and where it was looked for; nothing if there is none to be had."""
    layouts = [layout for layout in description.layouts if layout.title]
    if layouts:
        return "; ".join(f"{layout.pattern} ({layout.title})" for layout in layouts) + f" below {root}"
    names: list[str] = []
    for style in description.lists:
        names += [f"<domain>_{ending}.txt" for ending, role in style.items() if role]
    names += [f"<domain>/{name}" for name, role in description.split_folders.items() if role]
    places = dict.fromkeys(map(str, list_places(root, folder, description)))
    return f"{', '.join(names)} in {', '.join(places)}" if names else ""


def _no_layout(root: Path, description: Description) -> UserError:
    """Returns the error of a root in which a data set has none of its layouts."""
    check_root(root, description)
    layouts = "; ".join(f"{layout.pattern} ({layout.of})" for layout in description.layouts)
    return UserError(
        f"Expected {description.name} in {root}, or up to {DEPTH} folders below it, as one of: {layouts}. Found "
        f"{some(folders_in(root)) or 'no folder'} there. Check data.root{command_that_gets_it(root, description)}."
    )


def _in_layout(folder: Path, layout: Layout, description: Description) -> OnDisk:
    """Reads a data set that has one of its layouts in a folder."""
    files: dict[str, list[ImageFile]] = defaultdict(list)
    roles: dict[str, dict[str, Role]] = defaultdict(dict)
    left_out: dict[str, list[str]] = defaultdict(list)
    pixels: dict[str, list[NDArray[np.uint8]]] = defaultdict(list)
    for file, picture in read_layout(folder, layout, description):
        if picture.reason:
            left_out[picture.reason].append(file.name)
            continue
        files[file.domain].append(file)
        if picture.role is not None:
            roles[file.domain][file.name] = picture.role
        if picture.pixels is not None:
            pixels[file.domain].append(picture.pixels)
    return OnDisk(
        folder=folder,
        files=dict(sorted(files.items())),
        roles=dict(roles),
        split=layout.title if roles else "",
        left_out=dict(left_out),
        layout=layout,
        pixels={domain: np.stack(images) for domain, images in pixels.items()},
    )


def _in_tree(root: Path, description: Description) -> OnDisk:
    """Reads a data set that lies in folders domain/class/image."""
    tree = find_tree(root, description)
    listed = split_of_folders(tree, description)
    # Folders between domain and class are the split itself; list files only speak of one.
    if not listed.title:
        listed = split_of_lists(root, tree, description)
    # Cleaned versions have lists of the images that stayed, others a list of the duplicates.
    duplicates = _duplicates(list_places(root, tree.folder, description), description)
    left_out: dict[str, list[str]] = {}
    files: dict[str, list[ImageFile]] = {domain: [] for domain in tree.files}
    for domain, images in tree.files.items():
        for image in images:
            if reason := _reason(image.name, description, duplicates, listed.names.get(domain)):
                left_out.setdefault(reason, []).append(image.name)
            else:
                files[domain].append(image)
    unclean = description.duplicates_list is not None and not (duplicates or listed.names)
    return OnDisk(tree.folder, files, listed.roles, listed.title, left_out, unclean)


def _reason(name: str, description: Description, duplicates: set[str], listed: set[str] | None) -> str:
    """Returns why an image does not count; nothing if it does."""
    if name in description.known_bad:
        return KNOWN_BAD
    if name in duplicates:
        return "known duplicates"
    return "images that are in no list" if listed is not None and name not in listed else ""


def _duplicates(places: Sequence[Path], description: Description) -> set[str]:
    """Reads the list of known duplicates, where there is one."""
    if description.duplicates_list is None:
        return set()
    names: set[str] = set()
    for place in places:
        path = place / description.duplicates_list
        if path.is_file():
            names |= {line.strip() for line in path.read_text(encoding="utf-8").splitlines()}
    return names
