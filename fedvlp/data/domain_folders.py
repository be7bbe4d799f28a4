"""Data sets of images in folders, with or without domains; checks of the layout; labels from folder names."""

import logging
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedvlp.catalog.description import normalise_name
from fedvlp.core.predictions import Predictions
from fedvlp.data.files.images import EXTENSIONS, compose_name, folders_in, is_hidden, is_image, list_files
from fedvlp.data.listed import ListedImages
from fedvlp.data.rows import ROLE_OF_PART, ImageFile
from fedvlp.utils.errors import UserError

EXPECTED = "root/domain/class/image, such as root/sketch/dog/1.png"
log = logging.getLogger(__name__)


class DomainFolders(ListedImages):
    """Images in folders: root/domain/class/image, the image at any depth below its class.

    Reads PNG, JPEG, JPEG 2000, WebP, AVIF, BMP, GIF, TIFF, PPM and PGM files, with extensions in any case. Ignores
    hidden files, and folders of operating systems and network storage such as ``@eaDir``.

    Hold out the sketches of animals/photo/cat/1.png, animals/sketch/dog/1.png and so on::

        data = DomainFolders("animals", held_out="sketch")
        data.class_names  # ["cat", "dog"]

    Args:
        root: Folder with a folder for each domain, each with a folder for each class.
        **options: The arguments of ListedImages.
    """

    def scan(self) -> dict[str, list[ImageFile]]:
        """List the images of each domain, sorted, with an empty list for a domain folder without images.

        Raises UserError if the root is missing or empty, or does not have the layout root/domain/class/image.
        """
        files, stray, other_types = _read_tree(self.root)
        folders = {compose_name(name): self.root / name for name in folders_in(self.root)}
        domains: dict[str, list[ImageFile]] = {name: [] for name in sorted(folders)}
        for file in files:
            domains[file.domain].append(file)
        in_folders = [name for name in stray if "/" in name]
        problem = ""
        if not files and not stray:
            problem = f"no image ({', '.join(sorted(EXTENSIONS))})"
        # A few images outside class folders are stray files, but many mean that a level is missing.
        elif not files or len(in_folders) > len(files):
            problem = f"root/{in_folders[0]}" if in_folders else "images directly"
        elif ROLE_OF_PART.keys() >= set(map(str.lower, domains)):
            problem = f"{' and '.join(domains)}, which are parts of a split,"
        elif len(domains) < 2:
            problem = f"one domain, {files[0].domain!r},"
        if problem:
            raise UserError(
                f"Expected two domains or more as {EXPECTED}; found {problem} in {self.root}. Point data.root to the "
                "folder of the domains, or, without domains, to a folder of classes with --config data/class_folders."
            )
        for domain, domain_files in domains.items():
            if domain_files:
                check_class_folders(folders[domain], domain_files, self.allow_missing_classes)
        check_two_classes(self.root, files)
        _report_ignored(self.root, stray, other_types)
        return domains


class ClassFolders(DomainFolders):
    """Images in class folders, without domains: root/class/image, the image at any depth below its class.

    All images form one domain, named after the folder. ``partition`` divides it among clients.

    Divide the images of animals/cat/1.png, animals/dog/1.png and so on among ten clients::

        data = ClassFolders("animals", partition=Dirichlet(num_clients=10))

    Args:
        root: Folder with a folder for each class.
        **options: The arguments of ListedImages.
    """

    def scan(self) -> dict[str, list[ImageFile]]:
        """List the images of the single domain, sorted; raise UserError unless the folders look like classes."""
        domain = compose_name(self.root.resolve().name)
        files = scan_domain(self.root, domain, self.allow_missing_classes)
        check_two_classes(self.root, files)
        return {domain: files}


def check_class_folders(folder: Path, files: Sequence[ImageFile], allow_empty: bool) -> None:
    """Raise UserError unless the folders in a domain's folder look like its classes.

    With ``allow_empty``, a class folder may be empty, but not contain only other files.
    """
    inside = subfolders(files)
    for name in folders_in(folder):
        if compose_name(name) in inside:
            continue
        is_empty = all(is_hidden(entry) for entry in os.listdir(folder / name))
        if not (is_empty and allow_empty):
            endings = {os.path.splitext(path)[1].lower() or "no ending" for _, path in list_files(folder / name)}
            found = f"files of other kinds ({', '.join(sorted(endings))})" if endings else "no file"
            raise UserError(
                f"Expected images in each class folder; found {found} in {folder / name}. Add images "
                f"({', '.join(sorted(EXTENSIONS))}), or remove the folder."
            )
    # There may be hundreds of folders, so messages show only the first few.
    listed = ", ".join(list(inside)[:5])
    first, *others = inside.values()
    problem = ""
    if ROLE_OF_PART.keys() >= set(map(str.lower, inside)):
        problem = "are parts of a split"
    elif len(first) > 1 and "" not in first and others and all(names == first for names in others):
        problem = f"all have the same folders in them ({', '.join(sorted(first)[:5])})"
    if problem:
        raise UserError(
            f"Expected the folders of classes in {folder}, such as dog; found {listed}, which {problem}. Put all "
            "images of a class into one folder, or point data.root to a folder of domains (--config data/folders) or "
            "of classes (--config data/class_folders)."
        )


def check_two_classes(root: Path, files: Sequence[ImageFile]) -> None:
    """Raise UserError if all images belong to one class."""
    inside = subfolders(files)
    if len(inside) < 2:
        ((name, below),) = inside.items()
        folders = ", ".join(sorted(below - {""})) or "no folder"
        raise UserError(
            f"Expected two classes or more in {root}; found one, {name!r}, with {folders} in it. Check data.root, or "
            "move the folders of the classes one level up."
        )


def subfolders(files: Sequence[ImageFile]) -> dict[str, set[str]]:
    """Map each class to the names of its direct subfolders with images; "" for images in its own folder."""
    inside: dict[str, set[str]] = defaultdict(set)
    for file in files:
        first, _, rest = file.name.split("/", 2)[2].partition("/")
        inside[file.class_name].add(first if rest else "")
    return inside


def scan_domain(folder: Path, domain: str, allow_empty: bool = True) -> list[ImageFile]:
    """List the images of one domain in class folders, sorted and named ``domain/class/image``."""
    files, stray, other_types = _read_tree(folder, domain)
    if not files:
        raise UserError(f"Expected class/image in {folder}, such as dog/1.png; found no image in a class folder.")
    check_class_folders(folder, files, allow_empty)
    _report_ignored(folder, stray, other_types)
    return files


def _read_tree(root: Path, *parents: str) -> tuple[list[ImageFile], list[str], list[str]]:
    """List images in class folders, names of other images, and endings of other files; ``parents`` names one domain."""
    if not root.is_dir():
        raise UserError(f"Expected a folder of images; there is no folder {root}. Check data.root.")
    files: list[ImageFile] = []
    stray: list[str] = []
    other_types: list[str] = []
    for parts, path in list_files(root):
        names = [*parents, *map(compose_name, parts)]
        if not is_image(path):
            other_types.append(os.path.splitext(path)[1].lower() or "no ending")
        elif len(names) < 3:  # a domain, a class and a file at least
            stray.append("/".join(parts))
        else:
            files.append(ImageFile(names[0], names[1], "/".join(names), path))
    return sorted(files), stray, other_types


def _report_ignored(root: Path, stray: Sequence[str], other_types: Sequence[str]) -> None:
    if stray:
        log.warning("Ignoring %d image(s) outside class folders in %s, such as %s.", len(stray), root, stray[0])
    if other_types:
        kinds = ", ".join(sorted(set(other_types)))
        log.warning("Ignoring %d file(s) in %s that are not images (%s).", len(other_types), root, kinds)


def label_by_folders(
    predictions: Predictions, paths: Sequence[Path], folders: Sequence[str], class_names: Sequence[str]
) -> tuple[dict[str, Predictions], list[str]]:
    """Label predictions by the images' folders, if every image is below a folder named after a class.

    Only letters and digits of names count, since prompts and folders often spell class names differently.

    Args:
        predictions: The predictions of the images.
        paths: The images.
        folders: The folders that were searched for the images. Images that the user named directly have no class.
        class_names: The classes, in the order of the labels.

    Returns:
        The labelled predictions by the name of the folder above the class folders; empty unless every image has a
        class. The other folders, if more than half of the images are in folders named after classes.
    """
    label_of = {normalise_name(name): label for label, name in enumerate(class_names)}
    # Folders cannot distinguish classes with the same letters and digits.
    if len(label_of) < len(class_names):
        return {}, []
    all_parts = [_parts(path, folders) for path in paths]
    others: list[str] = []
    # A folder of class folders, or a folder of domains with class folders in each.
    for depth in (1, 2):
        names = [parts[depth] if len(parts) > depth + 1 else "" for parts in all_parts]
        labels = np.array([label_of.get(normalise_name(name), -1) for name in names], np.int32)
        unknown = [name or "." for name, label in zip(names, labels, strict=True) if label < 0]
        if not unknown:
            rows_of: dict[str, list[int]] = defaultdict(list)
            for row, parts in enumerate(all_parts):
                rows_of[parts[depth - 1]].append(row)
            predicted, confidence = predictions.predicted, predictions.confidence
            by_domain = {}
            for domain, rows in rows_of.items():
                by_domain[domain] = Predictions(labels[rows], predicted[:, rows], confidence[:, rows])
            return by_domain, []
        if 2 * len(unknown) < len(all_parts):
            others = list(dict.fromkeys(unknown))
    return {}, others


def _parts(path: Path, folders: Sequence[str]) -> list[str]:
    for folder in folders:
        root = Path(folder).expanduser()
        if path != root and path.is_relative_to(root):
            return [compose_name(root.resolve().name), *map(compose_name, path.relative_to(root).parts)]
    return [path.name]
