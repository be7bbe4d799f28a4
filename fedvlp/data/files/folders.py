"""Trees of images: ``root/domain/class/image``, what is wrong with other trees, and classes by names of folders."""

from __future__ import annotations

import logging
import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from fedvlp.core.predictions import Predictions
from fedvlp.data.files.images import EXTENSIONS, is_hidden, is_image_name
from fedvlp.utils.errors import UserError

DEEPEST = 50
"""How many folders may lie in each other."""
EXPECTED = "root/domain/class/image, such as root/sketch/dog/1.png"
log = logging.getLogger(__name__)


@dataclass(frozen=True, order=True, slots=True)
class ImageFile:
    """One image of the tree; sorts by domain, class and name, however the file system orders or encodes them.

    Attributes:
        domain: name of the folder below the root.
        class_name: name of the folder below that.
        name: path below the root with forward slashes; Unicode in composed form (NFC), as all names here.
        path: where the file system has it.
    """

    domain: str
    class_name: str
    name: str
    path: str


def check_utf8(names: Iterable[str]) -> None:
    """Raises UserError for a name that is no UTF-8: no config can hold it, so what was trained could not be loaded.

    Args:
        names: of domains and classes.
    """
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"Expected names of domains and classes in UTF-8; {name!r} is none. Rename that folder."
            ) from error


def scan(root: Path, allow_single_domain: bool = False) -> dict[str, list[ImageFile]]:
    """Returns the images of each domain, sorted, with an empty list for a domain folder without images.

    Args:
        root: the folder of the domains.
        allow_single_domain: whether one domain is no mistake.

    Raises:
        UserError: if the root is missing or empty, or is not laid out as root/domain/class/image.
    """
    if not root.exists():
        raise UserError(f"Expected a folder of images at {root}; it does not exist. Check data.root.")
    if not root.is_dir():
        raise UserError(f"Expected a folder laid out as {EXPECTED}; {root} is a file.")
    found: dict[str, list[ImageFile]] = {composed(name): [] for name in _folders(root)}
    shallow: dict[int, list[str]] = defaultdict(list)
    for parts, path in list_images(root):
        if len(parts) < 3:  # a domain, a class and a file at least
            shallow[len(parts)].append("/".join(parts))
        else:
            names = [composed(part) for part in parts]
            found[names[0]].append(ImageFile(names[0], names[1], "/".join(names), path))
    _check_layout(root, found, shallow, 1 if allow_single_domain else 2)
    return {domain: unique(sorted(files)) for domain, files in sorted(found.items())}


def scan_domain(folder: Path, domain: str) -> list[ImageFile]:
    """Returns the images of one domain, which lie in ``folder/class/image``, sorted and named as :func:`scan` does.

    Raises:
        UserError: if the folder is missing, or holds no image in a class folder.
    """
    if not folder.is_dir():
        raise UserError(f"Expected a folder of class folders at {folder}; there is none. Check the root.")
    files: list[ImageFile] = []
    for parts, path in list_images(folder):
        if len(parts) > 1:  # a class and a file at least
            names = [composed(part) for part in parts]
            files.append(ImageFile(domain, names[0], "/".join([domain, *names]), path))
    if not files:
        raise UserError(f"Expected class/image in {folder}, such as dog/1.png; found no image in a class folder.")
    return unique(sorted(files))


def composed(name: str) -> str:
    """Returns a name in composed Unicode, since file systems keep accents in different forms."""
    return unicodedata.normalize("NFC", name)


def _folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not is_hidden(entry.name))


def _names(folder: Path) -> set[str]:
    try:
        return set(_folders(folder))
    except OSError:
        return set()


def list_images(root: Path) -> list[tuple[tuple[str, ...], str]]:
    """Returns names of folders and file, and the path, of all images below the root, sorted.

    Raises:
        UserError: if a folder may not be read, or too many lie in each other.
    """
    try:
        return sorted(_images(root, ()))
    except OSError as error:
        raise UserError(f"Could not list the images in {root}: {error}. Check the rights and the disk.") from error


def _images(
    folder: Path, parts: tuple[str, ...], above: frozenset[str] = frozenset()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields the images below a folder, as names of folders and file; links are followed, but never in a circle."""
    # A link to a folder above it would be followed for ever.
    real = os.path.realpath(folder)
    if real in above:
        return
    if len(parts) > DEEPEST:
        start = "/".join(parts[:3])
        raise UserError(f"More than {DEEPEST} folders lie in each other, from {start} on. Check data.root.")
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if entry.is_dir():
                yield from _images(Path(entry.path), (*parts, entry.name), above | {real})
            elif is_image_name(entry.name):
                yield (*parts, entry.name), entry.path


def unique(files: list[ImageFile]) -> list[ImageFile]:
    """Gives files whose names differ in Unicode form alone names of their own."""
    seen: dict[str, int] = defaultdict(int)
    result = []
    for file in files:
        seen[file.name] += 1
        again = f"#{seen[file.name]}" if seen[file.name] > 1 else ""
        result.append(ImageFile(file.domain, file.class_name, file.name + again, file.path))
    return result


def _check_layout(
    root: Path, found: dict[str, list[ImageFile]], shallow: dict[int, list[str]], fewest_domains: int
) -> None:
    """Raises unless there are enough domains with images in class folders; warns of images that are ignored."""
    filled = [domain for domain, files in found.items() if files]
    stray = list(chain.from_iterable(shallow.values()))
    if not filled and not stray:
        raise UserError(f"Expected {EXPECTED}; found no image ({', '.join(sorted(EXTENSIONS))}) in {root}.")
    # A few images beside the folders are stray files; more than there are inside means that a level is missing.
    if not filled or (shallow[2] and len(shallow[2]) > sum(len(files) for files in found.values())):
        raise UserError(_missing_level(root, shallow))
    if len(found) < fewest_domains:
        raise UserError(_single_domain(root, filled[0], found[filled[0]]))
    if stray:
        log.warning("Ignoring %d image(s) outside class folders in %s, such as %s.", len(stray), root, stray[0])


def _missing_level(root: Path, shallow: dict[int, list[str]]) -> str:
    """Says why images lie too near to the root."""
    if not shallow[2]:
        return f"Expected {EXPECTED}; found images directly in {root}. Sort them into folders by domain and class."
    message = f"Expected {EXPECTED}; found root/{shallow[2][0]} in {root}, so one level of folders is missing."
    classes = set(_folders(root))
    here = root.resolve()
    # A neighbour with folders of the same names looks like another domain, and the names like classes.
    alike = [name for name in _folders(here.parent) if name != here.name and classes & _names(here.parent / name)]
    if alike:
        return f"{message} It looks like a domain beside {alike[0]!r}: point data.root one level up, at {here.parent}."
    return f"{message} Put the class folders into one folder for each domain."


def _single_domain(root: Path, name: str, files: list[ImageFile]) -> str:
    """Says why there is but one domain."""
    message = f"Expected at least two domains laid out as {EXPECTED}; found one, {name!r}, in {root}."
    # Folders of the same names inside several folders look like classes inside domains.
    below = {tuple(file.name.split("/")[1:3]) for file in files if file.name.count("/") >= 3}
    classes: dict[str, set[str]] = defaultdict(set)
    for folder, inner in below:
        classes[inner].add(folder)
    if any(len(folders) > 1 for folders in classes.values()):
        return f"{message} The domains seem to be inside it: point data.root one level down, at {root / name}."
    return f"{message} Add a folder for each other domain, or allow it with data.allow_single_domain=true."


@dataclass(frozen=True)
class FolderLabels:
    """What the folders of images say.

    Attributes:
        labels: class of each image; empty if not every one lies in a folder that is called as a class.
        domains: where each image is from: the folder above that of its class.
        others: of images of which more than half lie in folders called as classes, the folders of the others.
    """

    labels: tuple[int, ...] = ()
    domains: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def by_domain(self, predictions: Predictions) -> dict[str, Predictions]:
        """Returns what the images of each domain were taken for, with these labels, given all in the order of paths."""
        labels = torch.tensor(self.labels, dtype=torch.int32)
        found = {}
        for domain in dict.fromkeys(self.domains):
            chosen = torch.tensor([row for row, each in enumerate(self.domains) if each == domain])
            found[domain] = Predictions(
                labels[chosen], predictions.predicted[:, chosen], predictions.confidence[:, chosen]
            )
        return found


def folder_labels(paths: Sequence[Path], folders: Sequence[str], class_names: Sequence[str]) -> FolderLabels:
    """Returns the classes of images, if every one lies in a folder that is called as a class, at any depth below it.

    Capitals, underscores and hyphens of folders do not matter, since class names in prompts are often written without.

    Args:
        paths: the images.
        folders: what was searched for them; an image that was named itself has no class.
        class_names: the classes, in the order of the labels.
    """
    plain = {_plain(name): label for label, name in enumerate(class_names)}
    # Where two classes differ in these alone, folders are taken as they are written.
    is_plain = len(plain) == len(class_names)
    labels = plain if is_plain else {name: label for label, name in enumerate(class_names)}
    parts = [_parts(path, folders) for path in paths]
    others: tuple[str, ...] = ()
    for depth in (1, 2):
        names = [each[depth] if len(each) > depth + 1 else "" for each in parts]
        found = [labels.get(_plain(name) if is_plain else name) for name in names]
        known = tuple(label for label in found if label is not None)
        if len(known) == len(parts):
            return FolderLabels(known, tuple(each[depth - 1] for each in parts))
        if 2 * len(known) > len(parts):
            others = _unknown(names, found)
    return FolderLabels(others=others)


def _parts(path: Path, folders: Sequence[str]) -> list[str]:
    """Returns the names of the folder given, of those in it on the way to an image, and of the image."""
    for folder in folders:
        root = Path(folder).expanduser()
        if path != root and path.is_relative_to(root):
            return [composed(root.resolve().name), *map(composed, path.relative_to(root).parts)]
    return [path.name]


def _unknown(names: Sequence[str], found: Sequence[int | None]) -> tuple[str, ...]:
    """Returns the names without a class, each once; that of an image beside the folders of classes is a dot."""
    return tuple(dict.fromkeys(name or "." for name, label in zip(names, found, strict=True) if label is None))


def _plain(name: str) -> str:
    return composed(name).casefold().replace("_", " ").replace("-", " ")
