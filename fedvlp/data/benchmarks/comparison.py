"""What differs between images on disk and a published data set, and which images are there twice."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from fedvlp.data.benchmarks.layouts import some
from fedvlp.data.benchmarks.on_disk import KNOWN_BAD, OnDisk
from fedvlp.data.catalog import Description
from fedvlp.data.files.folders import ImageFile
from fedvlp.data.files.images import in_threads, unreadable
from fedvlp.data.splits import Role

ROLES: tuple[Role, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Findings:
    """What was found.

    Attributes:
        problems: what must be mended, a line each; none if the images are those that were published.
        notes: what is good to know.
    """

    problems: list[str]
    notes: list[str]


def compare(on_disk: OnDisk, description: Description | None) -> Findings:
    """Compares images on disk with what was published, if that is known, and reads each of them."""
    problems = differences(on_disk, description)
    problems += _unreadable(on_disk)
    leaks, repeated = duplicates(on_disk)
    notes = list(on_disk.notes)
    if leaks:
        line = f"{len(leaks)} images lie in two domains, or in two parts of the split: {some(leaks, most=5)}"
        # Whoever published them with copies has them so on every machine.
        is_known = description is not None and description.has_copies
        (notes if is_known else problems).append(line)
    if repeated:
        notes.append(
            f"{len(repeated)} images are there twice in one domain, so a split that is drawn may have them on both "
            f"sides: {some(repeated, most=5)}"
        )
    return Findings(problems, notes)


def role_counts(on_disk: OnDisk, domain: str) -> dict[Role, int]:
    """Returns how many images of a domain have each official role."""
    counts = Counter(on_disk.roles.get(domain, {}).get(image.name) for image in on_disk.files[domain])
    return {role: counts[role] for role in ROLES}


def differences(on_disk: OnDisk, description: Description | None) -> list[str]:
    """Returns a line for each domain that is not as it was published, or lacks a class that another domain has."""
    lines = []
    if description is not None:
        description = description.in_layout(on_disk.layout, on_disk.files)
    for domain in on_disk.files:
        differences: list[str] = []
        if description is not None:
            differences += _image_count(on_disk, domain, description)
            differences += _split_counts(on_disk, domain, description)
        differences += _missing_classes(on_disk, domain, description)
        if differences:
            lines.append(f"{domain}: {'; '.join(differences)}")
    return lines


def _image_count(on_disk: OnDisk, domain: str, description: Description) -> list[str]:
    """Returns how many images there are, with the classes that differ, if that is not what was published."""
    # Images that are known to be bad were published and are left out here, so they count as found.
    bad = Counter(name.split("/")[1] for name in _known_bad(on_disk, domain))
    counts = Counter(image.class_name for image in on_disk.files[domain]) + bad
    published = description.counts.get(domain, {})
    wrong = [f"{name} {counts[name] - number:+,}" for name, number in published.items() if counts[name] != number]
    total = counts.total()
    expected = description.domain_counts[domain]
    is_total_right = expected in (None, total)
    if not wrong and is_total_right:
        return []
    if total != expected:
        message = f"{total:,} images, {expected:,} published"
    else:
        message = f"{total:,} images in all, as published"
    return [f"{message} ({some(wrong, most=5)})" if wrong else message]


def _split_counts(on_disk: OnDisk, domain: str, description: Description) -> list[str]:
    """Returns the parts of the official split that have another number of images than was published."""
    published = description.split_counts.get(domain, {}) if on_disk.roles else {}
    counts = role_counts(on_disk, domain)
    bad = len(_known_bad(on_disk, domain))
    return [
        f"{counts[role]:,} {role} images, {number:,} published"
        for role, number in published.items()
        if not 0 <= number - counts[role] <= bad
    ]


def _known_bad(on_disk: OnDisk, domain: str) -> list[str]:
    """Returns the images of a domain that were published, but are left out as they can't be read."""
    return [name for name in on_disk.left_out.get(KNOWN_BAD, ()) if name.startswith(f"{domain}/")]


def _missing_classes(on_disk: OnDisk, domain: str, description: Description | None) -> list[str]:
    """Returns the classes that a domain lacks, where no counts by class have said so."""
    if description and (description.may_lack_classes or domain in description.counts):
        return []
    here = {image.class_name for image in on_disk.files[domain]}
    everywhere = {image.class_name for image in chain.from_iterable(on_disk.files.values())}
    expected = set(description.domain_classes.get(domain, description.class_names)) if description else everywhere
    lacking = sorted(expected - here)
    return [f"no image of {some(lacking, most=5)}"] if lacking else []


def _unreadable(on_disk: OnDisk) -> list[str]:
    """Returns a line that names the images that can't be read, if there are any."""
    listed = []
    for domain, files in on_disk.files.items():
        if domain in on_disk.pixels:
            continue
        for row, reason in unreadable([image.path for image in files], f"reading {domain}").items():
            listed.append(f"{files[row].name} ({reason})")
    return [f"{len(listed)} images can't be read: {some(listed, most=5)}"] if listed else []


def duplicates(on_disk: OnDisk) -> tuple[list[str], list[str]]:
    """Returns pairs of names of files with the same bytes: in two domains or parts of the split, and in one."""
    leaks: list[str] = []
    repeated: list[str] = []
    for group in [*_same_bytes(_image_files(on_disk)), *_same_pixels(on_disk)]:
        first, *others = group
        for other in others:
            # Within one part a copy does no harm, unless a split is drawn that tears the two apart.
            is_leak = first.domain != other.domain or _role(on_disk, first) != _role(on_disk, other)
            (leaks if is_leak else repeated).append(f"{first.name} = {other.name}")
    return leaks, repeated


def _image_files(on_disk: OnDisk) -> list[ImageFile]:
    """Returns the images that are files."""
    return list(chain.from_iterable(files for domain, files in on_disk.files.items() if domain not in on_disk.pixels))


def _same_pixels(on_disk: OnDisk) -> list[list[ImageFile]]:
    """Returns groups of several images with equal pixels, in order, of those that are no files."""
    groups: dict[bytes, list[ImageFile]] = defaultdict(list)
    for domain, pixels in on_disk.pixels.items():
        for image, values in zip(on_disk.files[domain], pixels, strict=True):
            groups[values.tobytes()].append(image)
    return [group for group in groups.values() if len(group) > 1]


def _role(on_disk: OnDisk, image: ImageFile) -> Role | None:
    return on_disk.roles.get(image.domain, {}).get(image.name)


def _same_bytes(images: Sequence[ImageFile]) -> list[list[ImageFile]]:
    """Returns groups of several images whose files are equal, in order; only files of equal size are read."""
    of_size: dict[int, list[ImageFile]] = defaultdict(list)
    for image in images:
        of_size[os.stat(image.path).st_size].append(image)
    alike = list(chain.from_iterable(group for group in of_size.values() if len(group) > 1))
    digests = in_threads(_digest, [image.path for image in alike], "looking for duplicates")
    groups: dict[str, list[ImageFile]] = defaultdict(list)
    for image, digest in zip(alike, digests, strict=True):
        groups[digest].append(image)
    return sorted(sorted(group) for group in groups.values() if len(group) > 1)


def _digest(path: str) -> str:
    """Returns the digest of a file; of one that can't be read, its path."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return path
