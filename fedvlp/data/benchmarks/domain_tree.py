"""Reader of published data sets in folders domain/class/image, with split folders or list files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from fedvlp.catalog.description import Description, DomainTree, SplitName
from fedvlp.core.roles import ImageRole
from fedvlp.data.benchmarks.layouts import check_strangers, domains_in, some
from fedvlp.data.domain_folders import ImageFile
from fedvlp.data.files.images import composed, folders_in, list_images
from fedvlp.utils.errors import UserError

KNOWN_BAD = "known bad images"


class ListFile(NamedTuple):
    """A list ``<domain>_<ending>.txt`` of a domain's images with one role."""

    path: Path
    domain: str
    ending: str
    role: SplitName


class TreeImages(NamedTuple):
    """The images of a tree, the parts of the official split (empty without one), and skipped images by reason."""

    images: list[ImageFile]
    title: str
    left_out: dict[str, list[str]]


def read_tree(root: Path, folder: Path, tree: DomainTree, description: Description) -> TreeImages:
    """Read the images and the official split of the tree in a folder at or below the root.

    Raises:
        UserError: If class folders are of another data set, or a list contradicts another list or the folders.
    """
    images, split_folders = _images_below(folder, tree, description)
    # Folders and lists near the images come first.
    bases = dict.fromkeys((folder, folder.parent, root))
    places = [base / inside for base, inside in product(bases, tree.list_folders)]
    lists: list[ListFile] = []
    trained = {image.domain for image in images if image.role == "train"}
    # Folders between domain and class are the split if each domain has training images.
    if len(trained) == len(description.domains):
        title = "/".join(name for name in tree.split_folders if name in split_folders)
    else:
        lists = _find_lists(places, tree, description)
        title = "/".join(dict.fromkeys(file.ending.removesuffix("_kfold") for file in lists))
    roles: Mapping[str, ImageRole | None] = {image.name: image.role for image in images}
    if lists:
        roles = _read_lists(lists, images, description)
    # Cleaned versions have lists of the images that stayed, others a list of the duplicates.
    duplicates: set[str] = set()
    for path in [place / tree.duplicates_list for place in places if tree.duplicates_list]:
        if path.is_file():
            duplicates |= set(map(str.strip, path.read_text(encoding="utf-8").splitlines()))
    kept: list[ImageFile] = []
    left_out: dict[str, list[str]] = defaultdict(list)
    for image in images:
        if image.name in description.known_bad:
            left_out[KNOWN_BAD].append(image.name)
        elif image.name in duplicates:
            left_out["known duplicates"].append(image.name)
        elif image.name not in roles:
            left_out["images that are in no list"].append(image.name)
        else:
            kept.append(replace(image, role=roles[image.name] if title else None))
    return TreeImages(kept, title, dict(left_out))


def _images_below(folder: Path, tree: DomainTree, description: Description) -> tuple[list[ImageFile], set[str]]:
    """List the images of all domains, sorted, with the roles of their split folders; and these folders."""
    images: list[ImageFile] = []
    used: set[str] = set()
    strangers: set[str] = set()
    for domain, domain_folder in domains_in(folder, description).items():
        below = set(map(str.casefold, folders_in(folder / domain_folder)))
        # "full" is "train" and "crossval" together.
        skipped = "full" if "train" in below else None
        in_domain: list[tuple[str, ImageFile]] = []
        for folders_and_file, path in list_images(folder / domain_folder):
            names = [composed(name) for name in folders_and_file]
            split_folder = ""
            if len(names) > 1 and names[0].casefold() in tree.split_folders:
                split_folder = names.pop(0).casefold()
            class_name = description.class_of(names[0]) if len(names) > 1 else None
            if class_name is None:
                strangers.add(f"{domain_folder}/{names[0]}")
            elif not split_folder or split_folder != skipped:
                name = "/".join([domain, class_name, *names[1:]])
                role = tree.split_folders.get(split_folder)
                in_domain.append((split_folder, ImageFile(domain, class_name, name, path, role)))
        used |= {split_folder for split_folder, _ in in_domain}
        counts = Counter(image.name for _, image in in_domain)
        for split_folder, image in in_domain:
            # Names contain the split folder only where they would not be unique without it.
            if split_folder and counts[image.name] > 1:
                inside = image.name.removeprefix(f"{domain}/{image.class_name}/")
                image = replace(image, name=f"{domain}/{image.class_name}/{split_folder}/{inside}")
            images.append(image)
    # A subset is stored with the other classes of the larger data set.
    if not description.is_subset:
        check_strangers(sorted(strangers), folder, description)
    return sorted(images), used


def _find_lists(places: Sequence[Path], tree: DomainTree, description: Description) -> list[ListFile]:
    """Find the lists of the first place and style that has any, since lists of several sources do not mix."""
    for place, style in product(places, tree.lists):
        lists = []
        for (ending, role), path in product(style.items(), sorted(place.glob("*.txt"))):
            stem = path.stem.casefold()
            domain = description.domain_of(stem.removesuffix(f"_{ending}"))
            if stem.endswith(f"_{ending}") and domain:
                lists.append(ListFile(path, domain, ending, role))
        if lists:
            return lists
    return []


def _read_lists(
    lists: Sequence[ListFile], images: Sequence[ImageFile], description: Description
) -> dict[str, SplitName]:
    """Read the roles of images by name; raise UserError if lists contradict each other or domains have none."""
    trained = {file.domain for file in lists if file.role == "train"}
    if lacking := [domain for domain in description.domains if domain not in trained]:
        raise UserError(
            f"Expected a list of training images for each domain of {description.name} beside {lists[0].path}; found "
            f"none for {', '.join(lacking)}. Add the lists, or take all of them away."
        )
    list_of: dict[str, ListFile] = {}
    leaks = []
    for file in lists:
        for name in _read_list(file, images, description):
            first = list_of.setdefault(name, file)
            if first.role != file.role:
                leaks.append(f"{name} ({first.path.name}, {file.path.name})")
    if leaks:
        raise UserError(
            f"Expected each image in one part of the split; {len(leaks)} are in two: {some(leaks)}. A split that leaks "
            "measures nothing: mend the lists, or draw a split with data.split=stratified."
        )
    return {name: file.role for name, file in list_of.items()}


def _read_list(file: ListFile, images: Sequence[ImageFile], description: Description) -> list[str]:
    """Read the names of the images in a list; raise UserError if a line is malformed or its image is missing."""
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
        # File names may contain spaces. Lists number the classes in various ways, so classes are taken from paths,
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
        # Lists of the larger data set name its other classes as well.
        elif not (class_name is None and description.is_subset) and not path.endswith(description.known_bad):
            missing.append(f"{path} (line {number})")
    if missing:
        raise UserError(
            f"{file.path} lists {len(missing)} images that are not in {file.domain}: {some(missing)}. "
            "Add them, or remove the list if it is of other images."
        )
    return names
