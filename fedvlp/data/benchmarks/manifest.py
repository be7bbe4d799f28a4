"""Read a published data set from disk, as images with class, domain and role, in any layout."""

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple

from fedvlp.catalog.description import Description, Layout, SplitName
from fedvlp.core.roles import ImageRole
from fedvlp.data.benchmarks.layouts import describe_missing, find_layout, read_layout, read_lines
from fedvlp.data.rows import ImageFile, split_labels
from fedvlp.utils.errors import UserError, shorten

KNOWN_BAD = "known bad images"
# Lists number the classes in various ways, so classes are taken from paths. Paths may contain spaces, and may have been
# written on Windows, or with the folders of another machine.
LINE = r"(?P<path>.+[/\\].+?)\s+\d+"


@dataclass(frozen=True)
class Manifest:
    """The images of a data set on disk.

    Attributes:
        folder: The folder of the images.
        files: The images of each domain, sorted, with their official roles if there is a split.
        split: The parts of the official split, such as "train/crossval"; empty if there is none.
        skipped: Names of skipped images on disk, by reason.
        layout: Their layout; None for the user's own folders.
        several_labels: Whether classes are sets of labels.
    """

    folder: Path
    files: Mapping[str, list[ImageFile]]
    split: str = ""
    skipped: Mapping[str, list[str]] = field(default_factory=dict)
    layout: Layout | None = None
    several_labels: bool = False

    @property
    def notes(self) -> list[str]:
        """The skipped images, in one line for each reason."""
        return [f"skipped {len(names)} {reason}: {shorten(names, most=3)}" for reason, names in self.skipped.items()]

    def classes(self, domain: str) -> set[str]:
        """Collect the classes, or the labels, of a domain's images."""
        names = {image.class_name for image in self.files[domain]}
        return set(chain.from_iterable(map(split_labels, names))) if self.several_labels else names

    def role_counts(self, domain: str) -> Counter[ImageRole | None]:
        """Count the images of a domain by official role."""
        return Counter(image.role for image in self.files[domain])


def read_manifest(root: Path, description: Description) -> Manifest:
    """List the images of a data set with the official split, without opening any image file.

    Raises UserError if the data set is not at or below the root, or its files or lists are wrong.
    """
    match = find_layout(root, description)
    if match is None:
        raise UserError(describe_missing(root, description))
    folder, layout = match
    images = read_layout(folder, layout, description)
    _check_once(images, folder)
    title = _title_of_folders(images, folder, layout, description) if layout.is_tree else layout.title
    # Folders near the images come first.
    bases = dict.fromkeys((folder, folder.parent, root))
    list_folders = [base / inside for base, inside in product(bases, layout.list_folders)]
    lists = [] if title else _find_lists(list_folders, layout, description)
    listed = _read_lists(lists, images, description) if lists else {}
    if lists:
        title = "/".join(dict.fromkeys(file.ending.removesuffix("_kfold") for file in lists))
    # Cleaned versions list the remaining images, other versions list the duplicates.
    duplicates: set[str] = set()
    for path in [list_folder / layout.duplicates_list for list_folder in list_folders if layout.duplicates_list]:
        if path.is_file():
            duplicates |= set(map(str.strip, path.read_text(encoding="utf-8").splitlines()))
    domains = description.domains if layout.is_tree else sorted({image.domain for image in images})
    files: dict[str, list[ImageFile]] = {domain: [] for domain in domains}
    skipped: dict[str, list[str]] = defaultdict(list)
    classes = frozenset(description.class_names)
    for image in images:
        if image.name in description.known_bad:
            skipped[KNOWN_BAD].append(image.name)
        elif image.name in duplicates:
            skipped["known duplicates"].append(image.name)
        elif lists and image.name not in listed:
            skipped["images that are in no list"].append(image.name)
        # Some layouts have folders of clutter, or a class that was published twice.
        elif image.class_name not in classes and not description.several_labels:
            skipped["images in folders that are not classes"].append(image.name)
        else:
            role = listed.get(image.name, image.role if title else None)
            files[image.domain].append(image if role == image.role else replace(image, role=role))
    return Manifest(folder, files, title, dict(skipped), layout, description.several_labels)


def _title_of_folders(images: Sequence[ImageFile], folder: Path, layout: Layout, description: Description) -> str:
    """Name the folders between domain and class if they are a split, so if each domain has training images."""
    trained = {image.domain for image in images if image.role == "train"}
    if len(trained) < len(description.domains):
        return ""
    used = {Path(image.path).relative_to(folder).parts[1].casefold() for image in images}
    return "/".join(name for name in layout.split_folders if name in used)


def _check_once(images: Sequence[ImageFile], folder: Path) -> None:
    # Without roles an image may have two classes: nine of ImageCLEF-DA show a bottle and a person, or a bus and a car.
    counts = Counter((image.path, "" if image.role else image.class_name) for image in images)
    repeated = sorted(os.path.relpath(path, folder) for (path, _), count in counts.items() if count > 1)
    if repeated:
        raise UserError(
            f"Expected each image of {folder} once and in one part of the split; {len(repeated):,} are listed more "
            f"than once: {shorten(repeated)}. Download the files of the split again, or remove them."
        )


class RoleList(NamedTuple):
    """A list ``<domain>_<ending>.txt`` of a domain's images with one role."""

    path: Path
    domain: str
    ending: str
    role: SplitName


def _find_lists(folders: Sequence[Path], layout: Layout, description: Description) -> list[RoleList]:
    """Find the lists of the first folder and style with any, since lists from several sources do not mix."""
    for folder, style in product(folders, layout.lists):
        lists = []
        for (ending, role), path in product(style.items(), sorted(folder.glob("*.txt"))):
            stem = path.stem.casefold()
            domain = description.match_domain(stem.removesuffix(f"_{ending}"))
            if stem.endswith(f"_{ending}") and domain:
                lists.append(RoleList(path, domain, ending, role))
        if lists:
            return lists
    return []


def _read_lists(lists: list[RoleList], images: Sequence[ImageFile], description: Description) -> dict[str, SplitName]:
    """Read the role of each image in the lists, by name."""
    trained = {file.domain for file in lists if file.role == "train"}
    if untrained := [domain for domain in description.domains if domain not in trained]:
        raise UserError(
            f"Expected a list of training images for each domain of {description.name} next to {lists[0].path}; found "
            f"none for {', '.join(untrained)}. Add the lists, or remove all of them."
        )
    names: dict[tuple[str, str | None, str], str] = {}
    for image in images:
        names[image.domain, image.class_name, image.name.rsplit("/", 1)[-1]] = image.name
    list_of: dict[str, RoleList] = {}
    leaks = []
    for file in lists:
        missing = []
        for place, groups in read_lines(file.path, LINE, "'domain/class/image label'", "Correct or remove the list."):
            path = groups["path"]
            *_, domain, class_folder, file_name = ["", *path.replace("\\", "/").split("/")]
            class_name = description.match_class(class_folder)
            name = names.get((file.domain, class_name, file_name))
            if name is not None and description.match_domain(domain) in (None, file.domain):
                first = list_of.setdefault(name, file)
                if first.role != file.role:
                    leaks.append(f"{name} ({first.path.name}, {file.path.name})")
            # Lists of the larger data set also name its other classes.
            elif not (class_name is None and description.is_subset) and not path.endswith(description.known_bad):
                missing.append(f"{path} ({place})")
        if missing:
            raise UserError(
                f"{file.path} lists {len(missing)} images that are not in {file.domain}: {shorten(missing)}. "
                "Add them, or remove the list if it belongs to other images."
            )
    if leaks:
        raise UserError(
            f"Expected each image in one part of the split; {len(leaks)} are in two: {shorten(leaks)}. Correct the "
            "lists, or draw a split with data.split=stratified."
        )
    return {name: file.role for name, file in list_of.items()}
