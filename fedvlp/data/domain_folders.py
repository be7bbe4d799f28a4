"""Data sets of images in folders, with or without domains; checks of the layout; labels from folder names."""

import hashlib
import json
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedvlp.catalog.description import normalise_name
from fedvlp.core.predictions import Predictions
from fedvlp.core.roles import ImageRole
from fedvlp.data.files.images import (
    EXTENSIONS,
    ArrayImages,
    FolderImages,
    Images,
    bad_images_message,
    compose_name,
    decode_all,
    folders_in,
    group_copies,
    is_hidden,
    is_image,
    list_files,
)
from fedvlp.data.module import FederatedDataModule, fold_spelling
from fedvlp.data.splits import SplitPart, split_table
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_cache_file, write_json

EXPECTED = "root/domain/class/image, such as root/sketch/dog/1.png"
PARTS = frozenset({"train", "val", "valid", "validation", "test"})
"""Lower-case folder names that indicate the parts of a split if there are no other folders."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, order=True, slots=True)
class ImageFile:
    """One image of a folder tree; sorts by domain, class and name.

    Attributes:
        domain: Name of the folder below the root.
        class_name: Name of the folder below the domain's folder.
        name: ``domain/class/image``. All names are in composed Unicode (NFC).
        path: Path in the file system.
        role: Role in an official split, or None.
        pixels: uint8 of shape [H, W, 3], RGB, unless the image is a file.
    """

    domain: str
    class_name: str
    name: str
    path: str
    role: ImageRole | None = field(default=None, compare=False)
    pixels: NDArray[np.uint8] | None = field(default=None, compare=False)


class DomainFolders(FederatedDataModule):
    """Images in folders: root/domain/class/image, the image at any depth below its class.

    Reads PNG, JPEG, JPEG 2000, WebP, AVIF, BMP, GIF, TIFF, PPM and PGM files, with extensions in any case. Ignores
    hidden files, and folders of operating systems and network storage such as ``@eaDir``.

    Hold out the sketches of animals/photo/cat/1.png, animals/sketch/dog/1.png and so on::

        data = DomainFolders("animals", held_out="sketch")
        data.class_names  # ["cat", "dog"]

    Args:
        root: Folder with a folder for each domain, each with a folder for each class.
        on_bad_image: How to handle unreadable images: "error" lists them and stops, "skip" ignores them.
        allow_missing_classes: Whether a domain may lack a class that another domain has.
        merge_spellings: Whether class folders that differ only in capitals, spaces, _ and -, such as Face and face, are
            one class with its most frequent name. Otherwise they are an error, unless class_names_map renames them.
        **options: The arguments of FederatedDataModule.
    """

    def __init__(
        self,
        root: str,
        on_bad_image: Literal["error", "skip"] = "error",
        allow_missing_classes: bool = False,
        merge_spellings: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.root = Path(root).expanduser()
        self.name = f"{type(self).__name__} {self.root.resolve().name}"
        self.on_bad_image = on_bad_image
        self.allow_missing_classes = allow_missing_classes
        self.merge_spellings = merge_spellings
        self._digests: dict[str, str] = {}  # by the image's name, after reading the files

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """List the files of each domain and the names of the class folders, without opening any file."""
        domains = self.scan()
        several = spellings(domains, self.class_names_map)
        if several and not self.merge_spellings:
            listed = [f"{', '.join(map(repr, names))} are one class in {len(names)} spellings" for names in several]
            raise UserError(
                f"Expected each class of {self.root} in one spelling; {', and '.join(listed)}. Merge them with "
                "data.merge_spellings=true, rename the folders, or distinguish them in data.class_names_map."
            )
        name_of: dict[str, str] = {}
        for names in several:
            name_of |= dict.fromkeys(names, names[0])
        if several:
            for domain, files in domains.items():
                domains[domain] = [
                    replace(file, class_name=name_of.get(file.class_name, file.class_name)) for file in files
                ]
        classes = collect_classes(domains)
        class_names = sorted(set().union(*classes.values()))
        self._check_classes(classes)
        return {domain: labelled_images(files, class_names) for domain, files in domains.items()}, class_names

    def scan(self) -> dict[str, list[ImageFile]]:
        """List the images of each domain, sorted, with an empty list for a domain folder without images.

        Raises:
            UserError: If the root is missing or empty, or does not have the layout root/domain/class/image.
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
        elif PARTS.issuperset(map(str.lower, domains)):
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

    def verified_domains(self) -> Mapping[str, Images]:
        """Decode every file once, and skip unreadable files.

        Raises:
            UserError: If images can't be read and ``on_bad_image`` is "error", or skipping them leaves a gap.
        """
        domains, class_names = self._loaded
        good: dict[str, Images] = {}
        listed: list[tuple[str, str]] = []
        for domain, images in domains.items():
            good[domain] = images
            if isinstance(images, FolderImages):
                bad, digests = self._decoded(domain, images)
                self._digests |= zip(images.names, digests, strict=True)
                listed += [(images.names[row], reason) for row, reason in bad.items()]
                good[domain] = images.drop(list(bad))
        if not listed:
            return domains
        total = sum(len(images) for images in domains.values())
        if self.on_bad_image == "error":
            remedy = "Repair or remove them, or skip them with data.on_bad_image=skip."
            raise UserError(bad_images_message(listed, total, remedy))
        log.warning("%s", bad_images_message(listed, total, "They are skipped."))
        classes: dict[str, set[str]] = {}
        for domain, images in good.items():
            classes[domain] = {class_names[label] for label in np.unique(images.labels)}
        self._check_classes(classes)
        if lost := set(class_names).difference(*classes.values()):
            raise UserError(f"Expected a readable image of each class; found none of {', '.join(sorted(lost))}.")
        return good

    @cached_property
    def split_parts(self) -> list[SplitPart]:
        """The role of every image, after checking for copies of files."""
        parts = super().split_parts
        self._check_copies(parts)
        return parts

    def _check_copies(self, parts: Sequence[SplitPart], refuse: bool = True) -> None:
        """Report copies of files that distort accuracies; raise UserError for held-out domains if ``refuse``."""
        label_of: dict[str, int] = {}
        for images in self.images.values():
            label_of |= zip(images.names, images.labels.tolist(), strict=True)
        groups = group_copies(label_of, [self._digests.get(name, "") for name in label_of])
        if not groups:
            return
        held_out = set(label_of)
        trained: set[str] = set()
        measured: set[str] = set()
        for domain in self.source_domains:
            held_out -= set(self.images[domain].names)
        for entry in split_table(parts, self.images):
            (trained if entry["role"] == "train" else measured).update(entry["images"])
        leaks = _pairs(groups, held_out, label_of.keys() - held_out)
        by_label = [sorted(group, key=label_of.__getitem__) for group in groups]
        if leaks and refuse:
            raise UserError(
                f"Expected held-out domains to share no file with source domains; {len(leaks)} files are in both, such "
                f"as {leaks[0]}. Remove one of each, or hold out all domains that share files."
            )
        kinds = {
            "both held out and in a source domain": leaks,
            "both training and validation or test images": _pairs(groups, trained, measured - held_out),
            "in two classes": [f"{a[0]} = {a[-1]}" for a in by_label if label_of[a[0]] != label_of[a[-1]]],
        }
        findings = [f"{len(pairs)} are {kind} ({pairs[0]})" for kind, pairs in kinds.items() if pairs]
        if findings:
            log.warning("%s has copies of files: %s. Keep one of each.", self.root, "; ".join(findings))

    def _check_classes(self, classes: dict[str, set[str]]) -> None:
        empty = [domain for domain, names in classes.items() if not names]
        if empty:
            raise UserError(
                f"Expected images in every domain; found none in {', '.join(map(repr, empty))} of {self.root}. "
                "Add some, remove those folders, or check that data.root is the folder of the domains."
            )
        all_names = set().union(*classes.values())
        missing = {domain: sorted(all_names - names) for domain, names in classes.items() if all_names - names}
        if not missing or self.allow_missing_classes:
            return
        listed = "; ".join(f"{domain!r} has no {', '.join(map(repr, names))}" for domain, names in missing.items())
        hint = "Add images, or allow it with data.allow_missing_classes=true."
        # True if no two domains share a class.
        if len(all_names) == sum(map(len, classes.values())):
            hint = "The domains share no class at all, so data.root may point one level too high or too low."
        raise UserError(f"Expected every domain of {self.root} to have every class: {listed}. {hint}")

    def _decoded(self, domain: str, images: FolderImages) -> tuple[dict[int, str], list[str]]:
        """Decode the files of a domain as ``decode_all`` does, unless the cache has the result of unchanged files."""
        if self.cache_dir is None:
            return decode_all(images.paths, f"checking {domain}")
        folder = hashlib.sha256(str(self.root.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        path = self.cache_dir / "verified" / f"{folder}-{images.fingerprint(range(len(images)))}.json"
        # Reading a data set takes minutes, so the result is cached until a file changes.
        try:
            cached = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            bad, digests = decode_all(images.paths, f"checking {domain}")
            write_cache_file(path, partial(write_json, value={"unreadable": sorted(bad), "digests": digests}))
            return bad, digests
        # Unreadable files are read again, since permissions or the network may have failed before.
        rows = cached["unreadable"]
        still_bad, _ = decode_all([images.paths[row] for row in rows], f"checking {domain}")
        return {rows[position]: reason for position, reason in still_bad.items()}, cached["digests"]


class ClassFolders(DomainFolders):
    """Images in class folders, without domains: root/class/image, the image at any depth below its class.

    All images form one domain, named after the folder. ``partition`` divides it among clients.

    Divide the images of animals/cat/1.png, animals/dog/1.png and so on among ten clients::

        data = ClassFolders("animals", partition=Dirichlet(num_clients=10))

    Args:
        root: Folder with a folder for each class.
        **options: The arguments of DomainFolders.
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
    if PARTS.issuperset(map(str.lower, inside)):
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


def _pairs(groups: Sequence[Sequence[str]], first: Collection[str], second: Collection[str]) -> list[str]:
    """Format one pair of each group that has one member in ``first`` and another in ``second``."""
    pairs: list[str] = []
    for group in groups:
        in_first = next((name for name in group if name in first), None)
        in_second = next((name for name in group if name in second), None)
        if in_first and in_second:
            pairs.append(f"{in_first} = {in_second}")
    return pairs


def spellings(domains: Mapping[str, Sequence[ImageFile]], others: Collection[str] = ()) -> list[list[str]]:
    """List the names of each class with several spellings, the most frequent name first; skip names in ``others``.

    Names that differ only in capitals, spaces, ``_`` and ``-`` are spellings of one class.
    """
    counts = Counter(file.class_name for file in chain.from_iterable(domains.values()))
    groups: dict[str, list[str]] = defaultdict(list)
    for name in sorted(counts.keys() - set(others), key=lambda name: (-counts[name], name)):
        groups[fold_spelling(name)].append(name)
    return [names for names in groups.values() if len(names) > 1]


def collect_classes(domains: Mapping[str, Sequence[ImageFile]]) -> dict[str, set[str]]:
    """Collect the class names of each domain's images."""
    return {domain: {file.class_name for file in files} for domain, files in domains.items()}


def labelled_images(files: Sequence[ImageFile], class_names: Sequence[str]) -> Images:
    """Label the files of one domain by the positions of their classes."""
    label_of = {name: label for label, name in enumerate(class_names)}
    labels = [label_of[file.class_name] for file in files]
    names = [file.name for file in files]
    pixels = [file.pixels for file in files if file.pixels is not None]
    if pixels:
        return ArrayImages(np.stack(pixels), labels, names)
    return FolderImages([file.path for file in files], names, labels)


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
        unknown = [name or "." for name in names if normalise_name(name) not in label_of]
        if not unknown:
            labels = np.array([label_of[normalise_name(name)] for name in names], np.int32)
            domains = np.array([parts[depth - 1] for parts in all_parts])
            labelled = {}
            for domain in dict.fromkeys(domains.tolist()):
                rows = np.flatnonzero(domains == domain)
                chosen = (predictions.predicted[:, rows], predictions.confidence[:, rows])
                labelled[domain] = Predictions(labels[rows], *chosen)
            return labelled, []
        if 2 * len(unknown) < len(all_parts):
            others = list(dict.fromkeys(unknown))
    return {}, others


def _parts(path: Path, folders: Sequence[str]) -> list[str]:
    for folder in folders:
        root = Path(folder).expanduser()
        if path != root and path.is_relative_to(root):
            return [compose_name(root.resolve().name), *map(compose_name, path.relative_to(root).parts)]
    return [path.name]
