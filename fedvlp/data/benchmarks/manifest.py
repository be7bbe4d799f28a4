"""A published data set as it is on disk: images with class, domain and role, whatever the layout."""

from __future__ import annotations

import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple

from fedvlp.catalog.description import Description, Layout
from fedvlp.core.roles import ImageRole
from fedvlp.data.benchmarks.layouts import DEPTH, find_layout, nearest_first, read_layout, some
from fedvlp.data.domain_folders import ImageFile
from fedvlp.data.files.images import composed, folders_in, list_images
from fedvlp.utils.errors import UserError

KNOWN_BAD = "known bad images"


class ListFile(NamedTuple):
    """A list ``<domain>_<ending>.txt`` of images of a domain; without a role it only says which images there are."""

    path: Path
    domain: str
    ending: str
    role: ImageRole | None


@dataclass(frozen=True)
class Manifest:
    """The images of a data set on disk.

    Attributes:
        folder: the folder in which they were found.
        files: the images of each domain, sorted; each with its official role, where there is a split.
        split: the parts of the official split, such as "train/crossval"; empty without one.
        left_out: images that are on disk but do not count, by the reason.
        layout: the one in which it was read; None for folders domain/class/image.
    """

    folder: Path
    files: Mapping[str, list[ImageFile]]
    split: str = ""
    left_out: Mapping[str, list[str]] = field(default_factory=dict)
    layout: Layout | None = None

    @property
    def notes(self) -> list[str]:
        """What was left out, one line for each reason."""
        return [f"left out {len(names)} {reason}: {some(names, most=3)}" for reason, names in self.left_out.items()]

    def role_counts(self, domain: str) -> Counter[ImageRole | None]:
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
    hint = "Check data.root"
    if description.download_source is not None:
        command = f"fedvlp data download {description.short_name} --root {shlex.quote(str(root))}"
        hint = f"Check data.root, or get it: {command}, or --data.download true"
    if not root.is_dir():
        raise UserError(f"Expected {description.name} in the folder {root}; there is no such folder. {hint}.")
    # A folder of classes alone could be any data set, so nothing is guessed.
    if description.is_tree:
        return _in_domain_folders(root, description)
    layouts = "; ".join(f"{layout.pattern} ({layout.of})" for layout in description.layouts)
    raise UserError(
        f"Expected {description.name} in {root}, or up to {DEPTH} folders below it, as one of: {layouts}. Found "
        f"{some(folders_in(root)) or 'no folder'} there. {hint}."
    )


def is_on_disk(root: Path, description: Description) -> bool:
    """Whether a data set is below a root in one of its layouts, complete or not."""
    if find_layout(root, description) is not None:
        return True
    if not description.is_tree or not root.is_dir():
        return False
    return any(len(_domains_in(folder, description)) == len(description.domains) for folder in nearest_first(root))


def _in_layout(folder: Path, layout: Layout, description: Description) -> Manifest:
    """Reads a data set that has one of its layouts in a folder."""
    images = read_layout(folder, layout, description)
    _check_once(images, folder)
    domains = sorted({image.domain for image in images})
    files: dict[str, list[ImageFile]] = {domain: [] for domain in domains}
    left_out: dict[str, list[str]] = defaultdict(list)
    classes = frozenset(description.class_names)
    for image in images:
        # Some layouts have folders of clutter, or of a class that was published twice.
        if image.class_name in classes:
            files[image.domain].append(image)
        else:
            left_out["images of folders that are no class"].append(image.name)
    # What says of no image what it does is no split, whatever it is called.
    title = layout.title if any(image.role for image in images) else ""
    return Manifest(folder, files, title, dict(left_out), layout=layout)


def _check_once(images: Sequence[ImageFile], folder: Path) -> None:
    """Raises UserError if an image has two roles, or is named twice."""
    # Without roles an image may have two classes: nine of ImageCLEF-DA show a bottle and a person, or a bus and a car.
    counts = Counter((image.path, "" if image.role else image.class_name) for image in images)
    repeated = sorted(os.path.relpath(path, folder) for (path, _), count in counts.items() if count > 1)
    if repeated:
        raise UserError(
            f"Expected each image of {folder} once and in one part of the split; {len(repeated):,} are named more than "
            f"once: {some(repeated)}. A split that leaks measures nothing: get its files again, or take them away."
        )


def _in_domain_folders(root: Path, description: Description) -> Manifest:
    """Reads a data set in folders domain/class/image."""
    folder, domain_folders = _find_domains(root, description)
    images, used = _images_of_domains(folder, domain_folders, description)
    trained = {image.domain for image in images if image.role == "train"}
    # Folders between domain and class are the split itself, if each domain has what trains; list files speak of one.
    listed: Mapping[str, set[str]] = {}
    if len(trained) == len(description.domains):
        title = "/".join(split_folder for split_folder in description.split_folders if split_folder in used)
    else:
        images, listed, title = _read_lists(root, folder, images, description)
    # Cleaned versions have lists of the images that stayed, others a list of the duplicates.
    duplicates: set[str] = set()
    for place in _list_places(root, folder, description) if description.duplicates_list else ():
        path = place / description.duplicates_list
        if path.is_file():
            duplicates |= set(map(str.strip, path.read_text(encoding="utf-8").splitlines()))
    files: dict[str, list[ImageFile]] = {domain: [] for domain in sorted(domain_folders)}
    left_out: dict[str, list[str]] = defaultdict(list)
    for image in images:
        if image.name in description.known_bad:
            left_out[KNOWN_BAD].append(image.name)
        elif image.name in duplicates:
            left_out["known duplicates"].append(image.name)
        elif image.name not in listed.get(image.domain, (image.name,)):
            left_out["images that are in no list"].append(image.name)
        else:
            files[image.domain].append(image)
    return Manifest(folder, files, title, dict(left_out))


def _find_domains(root: Path, description: Description) -> tuple[Path, dict[str, str]]:
    """Returns the folder of the domains nearest to the root, and the name of each domain's folder.

    Raises:
        UserError: if there is no folder that has all domains.
    """
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


def _images_of_domains(
    folder: Path, domain_folders: Mapping[str, str], description: Description
) -> tuple[list[ImageFile], set[str]]:
    """Returns the images of all domains, sorted, with the role of their split folder; and the split folders.

    Raises:
        UserError: if class folders are of another data set.
    """
    images: list[ImageFile] = []
    used: set[str] = set()
    strangers: set[str] = set()
    for domain, domain_folder in domain_folders.items():
        in_domain: list[tuple[str, ImageFile]] = []
        for folders_and_file, path in list_images(folder / domain_folder):
            names = [composed(name) for name in folders_and_file]
            split_folder = ""
            if len(names) > 1 and names[0].casefold() in description.split_folders:
                split_folder = names.pop(0).casefold()
            class_name = description.class_of(names[0]) if len(names) > 1 else None
            if class_name is None:
                strangers.add(f"{domain_folder}/{names[0]}")
                continue
            name = "/".join([domain, class_name, *names[1:]])
            role = description.split_folders.get(split_folder)
            in_domain.append((split_folder, ImageFile(domain, class_name, name, path, role)))
        split_folders = {split_folder for split_folder, _ in in_domain}
        if "train" in split_folders:
            # What is in "full" is then in "train" and "crossval" as well.
            in_domain = [(split_folder, image) for split_folder, image in in_domain if split_folder != "full"]
            split_folders.discard("full")
        used |= split_folders
        counts = Counter(image.name for _, image in in_domain)
        for split_folder, image in in_domain:
            # A split folder is in a name only if the name would not be unique without it.
            if split_folder and counts[image.name] > 1:
                below = image.name.removeprefix(f"{domain}/{image.class_name}/")
                image = replace(image, name=f"{domain}/{image.class_name}/{split_folder}/{below}")
            images.append(image)
    # A subset is among the other classes of the larger data set, which are no mistake.
    if strangers and not description.is_subset:
        raise UserError(
            f"Expected the class folders of {description.name} ({some(description.class_names)}) in {folder}; found "
            f"{some(sorted(strangers))} as well. Remove them, or read these images as DomainFolders."
        )
    return sorted(images), used


def _list_places(root: Path, folder: Path, description: Description) -> list[Path]:
    """Returns the folders in which lists may lie, those near the images first."""
    bases = dict.fromkeys((folder, folder.parent, root))
    return [base / inside for base, inside in product(bases, description.list_folders)]


def _read_lists(
    root: Path, folder: Path, images: Sequence[ImageFile], description: Description
) -> tuple[list[ImageFile], Mapping[str, set[str]], str]:
    """Returns the images in the roles that list files give them, the names listed by domain, and the split's parts.

    Raises:
        UserError: if a list contradicts another list or the folders, or some domains have no list.
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
    trained = {file.domain for file in lists if file.role == "train"}
    # Lists that do not say what trains are no split.
    if not trained:
        return [replace(image, role=None) for image in images], names, ""
    if lacking := [domain for domain in description.domains if domain not in trained]:
        raise UserError(
            f"Expected a list of training images for each domain of {description.name} beside {lists[0].path}; found "
            f"none for {', '.join(lacking)}. Add the lists, or take all of them away."
        )
    used = {file.ending for file in lists if file.role is not None}
    endings = [ending for ending in chain.from_iterable(description.lists) if ending in used]
    title = "/".join(ending.removesuffix("_kfold") for ending in endings)
    roles = {name: file.role for name, file in list_of.items()}
    return [replace(image, role=roles.get(image.name)) for image in images], names, title


def _find_lists(places: Sequence[Path], description: Description) -> list[ListFile]:
    """Returns the lists of the first place and style that has any, since lists of several sources do not mix."""
    for place, style in product(places, description.lists):
        lists = []
        for path, (ending, role) in product(sorted(place.glob("*.txt")), style.items()):
            stem = path.stem.casefold()
            domain = description.domain_of(stem.removesuffix(f"_{ending}"))
            if stem.endswith(f"_{ending}") and domain:
                lists.append(ListFile(path, domain, ending, role))
        if lists:
            return lists
    return []


def _read_list(file: ListFile, images: Sequence[ImageFile], description: Description) -> list[str]:
    """Returns the names of the images in a list, those known to be bad left out.

    Raises:
        UserError: if a line is not a path and a label, or its image is missing.
    """
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
        # Names of files may hold spaces. Lists number the classes in various ways, so classes are taken from paths,
        # which may have been written on Windows, or with the folders of another machine.
        path, _, label = line.rpartition(" ")
        folders = path.strip().replace("\\", "/").split("/")
        if len(folders) < 2 or not label.isdecimal():
            raise UserError(
                f"Expected 'domain/class/image label' in line {number} of {file.path}, such as 'photo/dog/1.jpg 1'; "
                f"found {line[:80]!r}. Mend or remove the list."
            )
        domain = description.domain_of(folders[-3]) if len(folders) > 2 else None
        class_name = description.class_of(folders[-2])
        name = image_names.get((class_name or "", folders[-1]))
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
