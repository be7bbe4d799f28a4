"""A published data set as it is on disk: its images, its official split, and what was left out of it and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedvlp.catalog import Description
from fedvlp.data.benchmarks.layouts import find_tree, some
from fedvlp.data.benchmarks.official import Roles, list_places, split_of_folders, split_of_lists
from fedvlp.data.files.layout import ImageFile

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
    """

    folder: Path
    files: Mapping[str, list[ImageFile]]
    roles: Roles
    split: str
    left_out: Mapping[str, list[str]]
    may_have_duplicates: bool = False

    @property
    def notes(self) -> list[str]:
        """What was left out, one line for each reason, and what should have been."""
        notes = [f"left out {len(names)} {reason}: {some(names, most=3)}" for reason, names in self.left_out.items()]
        if self.may_have_duplicates:
            notes.append("neither lists nor a list of duplicates are there, so images of the uncleaned version may be")
        return notes


def read_on_disk(root: Path, description: Description) -> OnDisk:
    """Reads which images there are, and the official split; opens no image.

    Raises:
        UserError: if layout or lists are not as they must be.
    """
    tree = find_tree(root, description)
    listed = split_of_folders(tree, description)
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
