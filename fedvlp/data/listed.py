"""Data sets of image files: spellings of classes, unreadable files, copies; given roles, clients and groups."""

import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from fedvlp.data.class_names import spellings
from fedvlp.data.files.images import FolderImages, Images, bad_images_message, decode_all, group_copies
from fedvlp.data.module import FederatedDataModule
from fedvlp.data.rows import ImageFile, collect_classes, label_targets, labelled_images, rename_labels
from fedvlp.data.splits import Names, SplitPart, hash_lines, split_table
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_cache_file, write_json

log = logging.getLogger(__name__)


class ListedImages(FederatedDataModule):
    """Images of files that a subclass lists in ``scan``.

    Args:
        root: Folder of the files.
        on_bad_image: How to handle unreadable images: "error" lists them and stops, "skip" ignores them.
        allow_missing_classes: Whether a domain may lack a class that another domain has.
        merge_spellings: Whether class folders that differ only in capitals, spaces, _ and -, such as Face and face, are
            one class with its most frequent name. Otherwise they are an error, unless class_names_map renames them.
        group: Regular expression that finds the patient, camera or other source in an image's name, such as
            "patient_[0-9]+". Images of one group are always on the same side of a split.
        **options: The arguments of FederatedDataModule.
    """

    def __init__(
        self,
        root: str,
        on_bad_image: Literal["error", "skip"] = "error",
        allow_missing_classes: bool = False,
        merge_spellings: bool = False,
        group: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.root = Path(root).expanduser()
        self.name = f"{type(self).__name__} {self.root.resolve().name}"
        self.on_bad_image = on_bad_image
        self.allow_missing_classes = allow_missing_classes
        self.merge_spellings = merge_spellings
        self.gaps: Mapping[str, frozenset[str]] = {}  # classes that a domain may lack
        try:
            self.group_pattern = None if group is None else re.compile(group)
        except re.error as error:
            raise UserError(f"Expected a regular expression in data.group; got {group!r} ({error}).") from error
        self._digests: dict[str, str] = {}  # by the image's name, after reading the files

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """List the files of each domain and the names of the class folders, without opening any file."""
        domains = self.scan()
        several = spellings(domains, self.class_names_map, self.several_labels)
        if several and not self.merge_spellings:
            listed = [f"{', '.join(map(repr, names))} are one class in {len(names)} spellings" for names in several]
            raise UserError(
                f"Expected each class of {self.root} in one spelling; {', and '.join(listed)}. Merge them with "
                "data.merge_spellings=true, rename the folders, or distinguish them in data.class_names_map."
            )
        if several:
            name_of = {name: names[0] for names in several for name in names}
            if self.several_labels:
                sets = set().union(*collect_classes(domains).values())
                name_of = {labels: rename_labels(labels, name_of) for labels in sets}
            for domain, files in domains.items():
                names = [name_of.get(file.class_name, file.class_name) for file in files]
                domains[domain] = [replace(file, class_name=name) for file, name in zip(files, names, strict=True)]
        classes = collect_classes(domains)
        class_names = sorted(set().union(*classes.values()))
        # With several labels, this only reports missing labels.
        ordered = self.order_classes(label_targets(class_names)[0] if self.several_labels else class_names)
        class_names = class_names if self.several_labels else ordered
        self._check_classes(classes)
        self.files = domains
        return {domain: labelled_images(files, class_names) for domain, files in domains.items()}, class_names

    def order_classes(self, names: Collection[str]) -> list[str]:
        """Order the names of the classes by label."""
        return sorted(names)

    def verified_domains(self) -> Mapping[str, Images]:
        """Decode every file once, and skip unreadable files.

        Raises UserError if images can't be read and ``on_bad_image`` is "error", or skipping them leaves a gap.
        """
        domains, class_names = self._loaded
        reasons: dict[str, str] = {}
        for domain, images in domains.items():
            if isinstance(images, FolderImages):
                bad, digests = self._decoded(domain, images)
                self._digests |= zip(images.names, digests, strict=True)
                reasons |= {images.names[row]: reason for row, reason in bad.items()}
        if not reasons:
            return domains
        total = sum(len(images) for images in domains.values())
        if self.on_bad_image == "error":
            remedy = "Repair or remove them, or skip them with data.on_bad_image=skip."
            raise UserError(bad_images_message(list(reasons.items()), total, remedy))
        log.warning("%s", bad_images_message(list(reasons.items()), total, "They are skipped."))
        self.files = {domain: [row for row in rows if row.name not in reasons] for domain, rows in self.files.items()}
        classes = collect_classes(self.files)
        self._check_classes(classes)
        if not self.several_labels and (lost := set(class_names).difference(*classes.values())):
            raise UserError(f"Expected a readable image of each class; found none of {', '.join(sorted(lost))}.")
        return {domain: labelled_images(rows, class_names) for domain, rows in self.files.items()}

    @cached_property
    def groups(self) -> Mapping[str, Names]:
        """The group of each image, by domain; "" for images without a group."""
        groups = self._column(self._group_of)
        if self.group_pattern and not groups:
            name = next(chain.from_iterable(images.names for images in self.images.values()))
            raise UserError(
                f"Expected data.group to find a group in names of images, such as {name!r}; "
                f"{self.group_pattern.pattern!r} is in none."
            )
        return groups

    def _group_of(self, file: ImageFile) -> str:
        match = self.group_pattern.search(file.name) if self.group_pattern else None
        if match is None:
            return file.group
        return (match[1] or "") if match.re.groups else match[0]

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
        source = {name for domain in self.source_domains for name in self.images[domain].names}
        trained: set[str] = set()
        measured: set[str] = set()
        for entry in split_table(parts, self.images):
            (trained if entry["role"] == "train" else measured).update(entry["images"])
        leaks = _pairs(groups, label_of.keys() - source, source)
        by_label = [sorted(group, key=label_of.__getitem__) for group in groups]
        if leaks and refuse:
            raise UserError(
                f"Expected held-out domains to share no file with source domains; {len(leaks)} files are in both, such "
                f"as {leaks[0]}. Remove one of each, or hold out all domains that share files."
            )
        kinds = {
            "both held out and in a source domain": leaks,
            "both training and validation or test images": _pairs(groups, trained, measured & source),
            "labelled differently" if self.several_labels else "in two classes": [
                f"{a[0]} = {a[-1]}" for a in by_label if label_of[a[0]] != label_of[a[-1]]
            ],
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
        missing = {domain: all_names - names - self.gaps.get(domain, set()) for domain, names in classes.items()}
        # With several labels, a class is a set of labels, and most sets are in few domains.
        if not any(missing.values()) or self.allow_missing_classes or self.several_labels:
            return
        lines = [
            f"{domain!r} has no {', '.join(map(repr, sorted(names)))}" for domain, names in missing.items() if names
        ]
        hint = "Add images, or allow it with data.allow_missing_classes=true."
        # True if no two domains share a class.
        if len(all_names) == sum(map(len, classes.values())):
            hint = "The domains share no class at all, so data.root may point one level too high or too low."
        raise UserError(f"Expected every domain of {self.root} to have every class: {'; '.join(lines)}. {hint}")

    def _decoded(self, domain: str, images: FolderImages) -> tuple[dict[int, str], list[str]]:
        """Decode the files of a domain as ``decode_all`` does, unless the cache has the result of unchanged files."""
        if self.cache_dir is None:
            return decode_all(images.paths, f"checking {domain}")
        folder = hash_lines([str(self.root.resolve())])
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


def _pairs(groups: Sequence[Sequence[str]], first: Collection[str], second: Collection[str]) -> list[str]:
    """Format one pair of each group that has one member in ``first`` and another in ``second``."""
    pairs: list[str] = []
    for group in groups:
        in_first = next((name for name in group if name in first), None)
        in_second = next((name for name in group if name in second), None)
        if in_first and in_second:
            pairs.append(f"{in_first} = {in_second}")
    return pairs
