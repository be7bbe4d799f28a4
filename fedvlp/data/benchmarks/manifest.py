"""A published data set as it is on disk: a list of images with class, domain and role, in whichever layout they lie."""

from __future__ import annotations

import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvlp.data.benchmarks.layouts import DEPTH, Row, find_layout, nearest_first, read_layout, some
from fedvlp.data.catalog import Description
from fedvlp.data.catalog.description import Layout
from fedvlp.data.domain_folders import ImageFile
from fedvlp.data.files.images import composed, folders_in, list_images
from fedvlp.data.split_rule import Role
from fedvlp.utils.errors import UserError

KNOWN_BAD = "known bad images"


@dataclass(frozen=True)
class Manifest:
    """The images of a data set on disk.

    Attributes:
        folder: the folder in which they were found.
        files: the images of each domain, sorted; each with its official role, where there is a split.
        split: the parts of the official split, such as "train/crossval"; empty without one.
        left_out: images that are on disk but do not count, by the reason.
        may_have_duplicates: whether nothing on disk says which of its known duplicates to leave out.
        layout: the one in which it was read; None for folders domain/class/image.
        pixels: the images of a domain, uint8 of shape [N, H, W, 3], in the order of ``files``, if they are no files.
    """

    folder: Path
    files: Mapping[str, list[ImageFile]]
    split: str = ""
    left_out: Mapping[str, list[str]] = field(default_factory=dict)
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

    def role_counts(self, domain: str) -> Counter[Role | None]:
        """Returns how many images of a domain have each official role."""
        return Counter(image.role for image in self.files[domain])


def read_manifest(root: Path, description: Description) -> Manifest:
    """Reads which images there are, and the official split; opens no image file.

    Raises:
        UserError: if layout or lists are not as they must be.
    """
    match = find_layout(root, description)
    if match is not None:
        return _in_layout(*match, description)
    # A folder of classes alone could be any data set, so nothing is guessed.
    if description.is_tree:
        return _in_domain_folders(root, description)
    check_root(root, description)
    layouts = "; ".join(f"{layout.pattern} ({layout.of})" for layout in description.layouts)
    raise UserError(
        f"Expected {description.name} in {root}, or up to {DEPTH} folders below it, as one of: {layouts}. Found "
        f"{some(folders_in(root)) or 'no folder'} there. Check data.root{_command_that_gets_it(root, description)}."
    )


def is_on_disk(root: Path, description: Description) -> bool:
    """Whether a data set is below a root in one of its layouts, complete or not."""
    if find_layout(root, description) is not None:
        return True
    if not description.is_tree or not root.is_dir():
        return False
    return any(len(_domains_in(folder, description)) == len(description.domains) for folder in nearest_first(root))


def check_root(root: Path, description: Description) -> None:
    """Raises UserError if there is no root."""
    if not root.is_dir():
        raise UserError(
            f"Expected {description.name} in the folder {root}; there is no such folder. Check data.root"
            f"{_command_that_gets_it(root, description)}."
        )


def _command_that_gets_it(root: Path, description: Description) -> str:
    if description.download_source is None:
        return ""
    command = f"fedvlp data download {description.short_name} --root {shlex.quote(str(root))}"
    return f", or get it: {command}, or --data.download true"


def splits_looked_for(root: Path, folder: Path, description: Description) -> str:
    """Returns what an official split is known by, and where it was looked for; nothing if there is none to be had."""
    layouts = [layout for layout in description.layouts if layout.title]
    if layouts:
        return "; ".join(f"{layout.pattern} ({layout.title})" for layout in layouts) + f" below {root}"
    names: list[str] = []
    for style in description.lists:
        names += [f"<domain>_{ending}.txt" for ending, role in style.items() if role]
    names += [f"<domain>/{name}" for name, role in description.split_folders.items() if role]
    places = dict.fromkeys(map(str, _list_places(root, folder, description)))
    return f"{', '.join(names)} in {', '.join(places)}" if names else ""


def _named(rows: Iterable[Row]) -> list[tuple[ImageFile, Row]]:
    """Returns rows as files named ``domain/class/image``, sorted by these names, each beside its row.

    The folder of a row is in a name only if the name would not be unique without it, so that the same images have the
    same names, and the same splits, in every layout.
    """
    rows = list(rows)
    counts = Counter((row.domain, row.class_name, row.file) for row in rows)
    files = []
    for row in rows:
        is_repeated = counts[row.domain, row.class_name, row.file] > 1
        folder = f"{row.folder}/" if row.folder and is_repeated else ""
        # Names of models of cars may hold a slash.
        name = composed(f"{row.domain}/{row.class_name.replace('/', ' ')}/{folder}{row.file}")
        files.append((ImageFile(row.domain, row.class_name, name, row.path, row.role), row))
    return sorted(files, key=lambda pair: pair[0])


def _in_layout(folder: Path, layout: Layout, description: Description) -> Manifest:
    """Reads a data set that has one of its layouts in a folder."""
    files: dict[str, list[ImageFile]] = defaultdict(list)
    left_out: dict[str, list[str]] = defaultdict(list)
    pixels: dict[str, list[NDArray[np.uint8]]] = defaultdict(list)
    rows = read_layout(folder, layout, description)
    _check_once(rows, folder)
    for file, row in _named(rows):
        if row.reason:
            left_out[row.reason].append(file.name)
            continue
        files[file.domain].append(file)
        if row.pixels is not None:
            pixels[file.domain].append(row.pixels)
    return Manifest(
        folder=folder,
        files=dict(sorted(files.items())),
        split=layout.title if any(row.role for row in rows) else "",
        left_out=dict(left_out),
        layout=layout,
        pixels={domain: np.stack(images) for domain, images in pixels.items()},
    )


def _check_once(rows: Sequence[Row], folder: Path) -> None:
    """Raises UserError if an image has two roles, or is named twice."""
    # Without roles an image may have two classes: nine of ImageCLEF-DA show a bottle and a person, or a bus and a car.
    counts = Counter((row.path, "" if row.role else row.class_name) for row in rows)
    repeated = sorted(os.path.relpath(path, folder) for (path, _), count in counts.items() if count > 1)
    if repeated:
        raise UserError(
            f"Expected each image of {folder} once and in one part of the split; {len(repeated):,} are named more than "
            f"once: {some(repeated)}. A split that leaks measures nothing: get its files again, or take them away."
        )


def _in_domain_folders(root: Path, description: Description) -> Manifest:
    """Reads a data set that lies in folders domain/class/image."""
    folder, domain_folders = _find_domains(root, description)
    rows = _rows_of_domains(folder, domain_folders, description)
    images = [file for file, _ in _named(rows)]
    title = _title_of_split_folders(rows, description)
    lists = SplitLists({}, {}, "")
    # Folders between domain and class are the split itself; list files only speak of one.
    if not title:
        lists = _read_lists(root, folder, images, description)
        images = [replace(image, role=lists.roles.get(image.name)) for image in images]
    # Cleaned versions have lists of the images that stayed, others a list of the duplicates.
    duplicates = _duplicates(_list_places(root, folder, description), description)
    files: dict[str, list[ImageFile]] = {domain: [] for domain in sorted(domain_folders)}
    left_out: dict[str, list[str]] = defaultdict(list)
    for image in images:
        if image.name in description.known_bad:
            left_out[KNOWN_BAD].append(image.name)
        elif image.name in duplicates:
            left_out["known duplicates"].append(image.name)
        elif image.name not in lists.names.get(image.domain, (image.name,)):
            left_out["images that are in no list"].append(image.name)
        else:
            files[image.domain].append(image)
    is_unclean = description.duplicates_list is not None and not (duplicates or lists.names)
    return Manifest(folder, files, title or lists.title, dict(left_out), is_unclean)


def _find_domains(root: Path, description: Description) -> tuple[Path, dict[str, str]]:
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
    there = f"{', '.join(names.values())} in {folder}" if names else f"{some(folders_in(root)) or 'no folder'} there"
    raise UserError(
        f"Expected a folder for each domain of {description.name} ({', '.join(description.domains)}) in {root}, or "
        f"up to {DEPTH} folders below it, with images as domain/class/image; found {there}, so "
        f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing. Add them, or check data.root."
    )


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


def _rows_of_domains(folder: Path, domain_folders: Mapping[str, str], description: Description) -> list[Row]:
    """Returns the images of all domains, with the role of the split folder that they are in.

    Raises:
        UserError: if class folders are of another data set.
    """
    rows: list[Row] = []
    strangers: set[str] = set()
    for domain, domain_folder in domain_folders.items():
        domain_rows = []
        for folders_and_file, path in list_images(folder / domain_folder):
            names = [composed(name) for name in folders_and_file]
            split_folder = ""
            if len(names) > 1 and names[0].casefold() in description.split_folders:
                split_folder = names.pop(0).casefold()
            class_name = description.class_of(names[0]) if len(names) > 1 else None
            if class_name is None:
                strangers.add(f"{domain_folder}/{names[0]}")
                continue
            role = description.split_folders.get(split_folder)
            domain_rows.append(Row(domain, class_name, "/".join(names[1:]), path, split_folder, role))
        if any(row.folder == "train" for row in domain_rows):
            # What is in "full" is then in "train" and "crossval" as well.
            domain_rows = [row for row in domain_rows if row.folder != "full"]
        rows += domain_rows
    # A subset lies among the other classes of the larger data set, which are no mistake.
    if strangers and not description.is_subset:
        raise UserError(
            f"Expected the class folders of {description.name} ({some(description.class_names)}) in {folder}; found "
            f"{some(sorted(strangers))} as well. Remove them, or read these images as DomainFolders."
        )
    return rows


def _title_of_split_folders(rows: Sequence[Row], description: Description) -> str:
    """Returns the parts of the split that lies in folders; nothing unless it has training images of each domain."""
    trained = {row.domain for row in rows if row.role == "train"}
    if len(trained) < len(description.domains):
        return ""
    used = {row.folder for row in rows}
    return "/".join(folder for folder in description.split_folders if folder in used)


def _duplicates(places: Sequence[Path], description: Description) -> set[str]:
    """Reads the list of known duplicates, where there is one."""
    names: set[str] = set()
    for place in places if description.duplicates_list else ():
        path = place / str(description.duplicates_list)
        if path.is_file():
            names |= {line.strip() for line in path.read_text(encoding="utf-8").splitlines()}
    return names


@dataclass(frozen=True)
class ListFile:
    """A list ``<domain>_<ending>.txt`` of the images of a domain.

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
class SplitLists:
    """What the lists of a data set say.

    Attributes:
        roles: the role of each image by its name; empty where no list says what trains.
        names: the images that are listed, by domain; a domain without a list is not in it.
        title: the parts of the split, such as "train/crossval".
    """

    roles: Mapping[str, Role]
    names: Mapping[str, set[str]]
    title: str


def _list_places(root: Path, folder: Path, description: Description) -> list[Path]:
    """Returns the folders in which lists may lie, those near the images first."""
    bases = dict.fromkeys((folder, folder.parent, root))
    return [base / inside for base, inside in product(bases, description.list_folders)]


def _read_lists(root: Path, folder: Path, images: Sequence[ImageFile], description: Description) -> SplitLists:
    """Returns what the list files say.

    Raises:
        UserError: if a list contradicts itself, another list or the folders.
    """
    lists = _find_lists(_list_places(root, folder, description), description)
    names: dict[str, set[str]] = defaultdict(set)
    list_of: dict[str, ListFile] = {}
    leaks = []
    for file in lists:
        for name in _read_list(file, images, description):
            names[file.domain].add(name)
            # A list of all images of a domain may name what another list gives a role.
            if file.role is not None:
                first = list_of.setdefault(name, file)
                if first.role != file.role:
                    leaks.append(f"{name} ({first.path.name}, {file.path.name})")
    if leaks:
        raise UserError(
            f"Expected each image in one part of the split; {len(leaks)} are in two: {some(leaks)}. A split that leaks "
            "measures nothing: mend the lists, or draw a split with data.split=stratified."
        )
    title = _title_of_lists(lists, description)
    return SplitLists({name: file.role for name, file in list_of.items() if file.role and title}, dict(names), title)


def _find_lists(places: Sequence[Path], description: Description) -> list[ListFile]:
    """Returns the lists of the first place and style that has any, since lists of several sources do not mix."""
    for place, style in product(places, description.lists):
        lists = list(_lists_in(place, style, description))
        if lists:
            return lists
    return []


def _lists_in(place: Path, style: Mapping[str, Role | None], description: Description) -> Iterator[ListFile]:
    for path in sorted(place.glob("*.txt")):
        stem = path.stem.casefold()
        for ending, role in style.items():
            domain = description.domain_of(stem.removesuffix(f"_{ending}"))
            if stem.endswith(f"_{ending}") and domain:
                yield ListFile(path, domain, ending, role)


def _title_of_lists(lists: Sequence[ListFile], description: Description) -> str:
    """Returns the parts of the split, such as "train/crossval"; nothing if no list says what trains.

    Raises:
        UserError: if only some domains have a list of training images.
    """
    trained = {file.domain for file in lists if file.role == "train"}
    if not trained:
        return ""
    if lacking := [domain for domain in description.domains if domain not in trained]:
        raise UserError(
            f"Expected a list of training images for each domain of {description.name} beside {lists[0].path}; found "
            f"none for {', '.join(lacking)}. Add the lists, or take all of them away."
        )
    used = {file.ending for file in lists if file.role is not None}
    titles = []
    for style in description.lists:
        titles += [ending.removesuffix("_kfold") for ending in style if ending in used]
    return "/".join(titles)


def _read_list(file: ListFile, images: Sequence[ImageFile], description: Description) -> list[str]:
    """Returns the names of the images in a list, those known to be bad left out.

    Raises:
        UserError: if images are missing.
    """
    image_names = {}
    for image in images:
        if image.domain == file.domain:
            image_names[image.class_name, image.name.rsplit("/", 1)[-1]] = image.name
    names: list[str] = []
    missing: list[str] = []
    for number, path in _lines(file.path):
        # A list may have been written on Windows, or with the folders of another machine.
        *folders, class_folder, image_name = path.replace("\\", "/").split("/")
        domain = description.domain_of(folders[-1]) if folders else None
        class_name = description.class_of(class_folder)
        name = image_names.get((class_name or "", image_name))
        if name is not None and domain in (None, file.domain):
            names.append(name)
        elif class_name is None and description.is_subset:
            continue  # the lists of the larger data set name its other classes too
        elif not path.endswith(description.known_bad):
            missing.append(f"{path} (line {number})")
    if missing:
        raise UserError(
            f"{file.path} lists {len(missing)} images that are not in {file.domain}: {some(missing)}. "
            "Add them, or remove the list if it is of other images."
        )
    return names


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the number of each line of a list and the path of its image, empty lines left out.

    Raises:
        UserError: if a line is not a path and a label.
    """
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    for number, line in enumerate(text.splitlines(), 1):
        # Names of files may hold spaces. Lists number the classes in various ways, so classes are taken from paths.
        image, _, label = line.strip().rpartition(" ")
        if "/" in image.replace("\\", "/") and label.isdecimal():
            yield number, image.strip()
        elif line.strip():
            raise UserError(
                f"Expected 'domain/class/image label' in line {number} of {path}, such as 'photo/dog/1.jpg 1'; "
                f"found {line.strip()[:80]!r}. Mend or remove the list."
            )
