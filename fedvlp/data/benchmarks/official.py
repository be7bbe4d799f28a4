"""Official splits: list files and folders that say which images train, validate and test."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path

from fedvlp.data.benchmarks.layouts import Tree, some
from fedvlp.data.catalog import Description
from fedvlp.data.files.folders import ImageFile
from fedvlp.data.splits import Role
from fedvlp.utils.errors import UserError

Roles = Mapping[str, Mapping[str, Role]]


@dataclass(frozen=True)
class ListFile:
    """One list of images.

    Attributes:
        path: the file.
        domain: whose images it lists.
        ending: what follows the domain in its name, such as "train_kfold".
        role: what its images do; None if that is not said.
    """

    path: Path
    domain: str
    ending: str
    role: Role | None


@dataclass(frozen=True)
class Line:
    """One line of a list.

    Attributes:
        number: which line it is, from 1.
        path: the path as it is written; it may be of another machine.
        folders: the folders in it.
        image: the file in it.
        label: the number behind it.
    """

    number: int
    path: str
    folders: tuple[str, ...]
    image: str
    label: int

    def domain(self, description: Description) -> str | None:
        """Returns the domain that the path names above the class, if it names one."""
        return description.domain_of(self.folders[-2]) if len(self.folders) > 1 else None


@dataclass(frozen=True)
class Listed:
    """What the lists of a data set say.

    Attributes:
        roles: the role of each image by domain and name; empty where nothing gives roles.
        names: the images that are listed, by domain; a domain without a list is not in it.
        title: the parts of the split, such as "train/crossval".
    """

    roles: Roles
    names: Mapping[str, set[str]]
    title: str


def split_of_folders(tree: Tree, description: Description) -> Listed:
    """Returns the split that lies in folders between domain and class, if each domain has training images of it."""
    roles: dict[str, dict[str, Role]] = {}
    used: set[str] = set()
    for domain, folders in tree.split_folders.items():
        given = {name: description.split_folders[folder] for name, folder in folders.items()}
        roles[domain] = {name: role for name, role in given.items() if role is not None}
        used |= set(folders.values())
    # Folders that do not say what trains are no split.
    if not all("train" in roles_of_domain.values() for roles_of_domain in roles.values()):
        return Listed({}, {}, "")
    return Listed(roles, {}, "/".join(folder for folder in description.split_folders if folder in used))


def split_of_lists(root: Path, tree: Tree, description: Description) -> Listed:
    """Returns what the list files say.

    Raises:
        UserError: if a list contradicts itself, another list or the folders; names the lines.
    """
    lists = find_lists(root, tree.folder, description)
    read = {file.path: _read(file, tree.files[file.domain], description) for file in lists}
    _check_roles(lists, read)
    names: dict[str, set[str]] = defaultdict(set)
    roles: dict[str, dict[str, Role]] = defaultdict(dict)
    for file in lists:
        names[file.domain].update(read[file.path])
        if file.role is not None:
            roles[file.domain].update(dict.fromkeys(read[file.path], file.role))
    title = _title(lists, tree, description)
    return Listed(dict(roles) if title else {}, dict(names), title)


def _title(lists: Sequence[ListFile], tree: Tree, description: Description) -> str:
    """Returns the parts of the split, such as "train/crossval"; nothing if no list says what trains.

    Raises:
        UserError: if only some domains have a list of training images.
    """
    trained = {file.domain for file in lists if file.role == "train"}
    if not trained:
        return ""
    if lacking := [domain for domain in tree.files if domain not in trained]:
        raise UserError(
            f"Expected a list of training images for each domain of {description.name} beside {lists[0].path}; found "
            f"none for {', '.join(lacking)}. Add the lists, or take all of them away."
        )
    used = {file.ending for file in lists if file.role is not None}
    endings = [ending for ending in chain.from_iterable(description.lists) if ending in used]
    return "/".join(ending.removesuffix("_kfold") for ending in endings)


def find_lists(root: Path, folder: Path, description: Description) -> list[ListFile]:
    """Returns the lists of the first place and style that has any; places are near the images first."""
    # Lists of several sources do not mix: the first place and style with any list counts.
    for place in list_places(root, folder, description):
        for style in description.lists:
            if found := sorted(_lists_in(place, style, description), key=lambda file: file.path):
                return found
    return []


def list_places(root: Path, folder: Path, description: Description) -> list[Path]:
    """Returns the folders in which lists may lie."""
    bases = dict.fromkeys((folder, folder.parent, root))
    return [base / inside for base, inside in product(bases, description.list_folders)]


def _lists_in(place: Path, style: Mapping[str, Role | None], description: Description) -> Iterator[ListFile]:
    """Yields the lists in a folder."""
    for name in sorted(os.listdir(place)) if place.is_dir() else []:
        stem, extension = os.path.splitext(name)
        for ending, role in style.items():
            is_of_style = extension == ".txt" and stem.casefold().endswith(f"_{ending}")
            domain = description.domain_of(stem.casefold().removesuffix(f"_{ending}"))
            if is_of_style and domain:
                yield ListFile(place / name, domain, ending, role)


def _check_roles(lists: Sequence[ListFile], names: Mapping[Path, Sequence[str]]) -> None:
    """Raises if an image is in the lists of two roles."""
    roles: dict[str, ListFile] = {}
    leaks = []
    for file in lists:
        if file.role is None:
            continue
        for name in names[file.path]:
            first = roles.setdefault(name, file)
            if first.role != file.role:
                leaks.append(f"{name} ({first.path.name}, {file.path.name})")
    if leaks:
        raise UserError(
            f"Expected each image in one part of the split; {len(leaks)} are in two: {some(leaks)}. A split that leaks "
            "measures nothing: mend the lists, or draw a split with data.split=stratified."
        )


def _read(file: ListFile, images: Sequence[ImageFile], description: Description) -> list[str]:
    """Returns the names of the images in a list, those known to be bad left out.

    Raises:
        UserError: if images are missing, or labels contradict the folders.
    """
    known = {(image.class_name, image.name.rsplit("/", 1)[-1]): image.name for image in images}
    names: list[str] = []
    missing: list[str] = []
    labels: list[tuple[Line, str]] = []
    for line in _lines(file):
        class_name = description.class_of(line.folders[-1])
        found = known.get((class_name or "", line.image))
        if found is not None and line.domain(description) in (None, file.domain):
            names.append(found)
            labels.append((line, class_name or ""))
        elif class_name is None and description.is_subset:
            continue  # the lists of the larger data set name its other classes too
        elif not line.path.endswith(description.known_bad):
            missing.append(f"{line.path} (line {line.number})")
    if missing:
        raise UserError(
            f"{file.path} lists {len(missing)} images that are not in {file.domain}: {some(missing)}. "
            "Add them, or remove the list if it is of other images."
        )
    _check_labels(file, labels)
    return names


def _lines(file: ListFile) -> Iterator[Line]:
    """Yields the lines of a list, empty ones left out.

    Raises:
        UserError: if a line is not a path and a number.
    """
    text = file.path.read_text(encoding="utf-8", errors="surrogateescape")
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip().split(" ")  # names of files may hold spaces, the label is the last word
        path = " ".join(words[:-1]).strip()
        # A list may have been written on Windows.
        names = path.replace("\\", "/").split("/")
        if len(names) > 1 and words[-1].isdecimal():
            yield Line(number, path, tuple(names[:-1]), names[-1], int(words[-1]))
        elif line.strip():
            raise UserError(
                f"Expected 'domain/class/image label' in line {number} of {file.path}, such as 'photo/dog/1.jpg 1'; "
                f"found {line.strip()[:80]!r}. Mend or remove the list."
            )


def _check_labels(file: ListFile, lines: Sequence[tuple[Line, str]]) -> None:
    """Raises if the numbers of a list do not stand for one class each; which number is whose does not matter."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for line, class_name in lines:
        counts[class_name][line.label] += 1
    # Each list numbers the classes in its own way, so labels are only checked against the folders.
    usual = {class_name: of_class.most_common(1)[0][0] for class_name, of_class in counts.items()}
    wrong = [
        f"line {line.number}: {line.path} has {line.label}, but most of {class_name} have {usual[class_name]}"
        for line, class_name in lines
        if line.label != usual[class_name]
    ]
    owners = defaultdict(list)
    for class_name, label in usual.items():
        owners[label].append(class_name)
    wrong += [f"{' and '.join(names)} both have {label}" for label, names in owners.items() if len(names) > 1]
    if wrong:
        raise UserError(
            f"The labels in {file.path} contradict the class folders ({some(wrong)}). Classes are taken from the "
            "folders, so mend the list or move the images."
        )
