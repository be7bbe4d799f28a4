"""What differs between images on disk and a published data set, and which images are there twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from fedvlp.catalog.description import Description
from fedvlp.data.benchmarks.layouts import some
from fedvlp.data.benchmarks.manifest import KNOWN_BAD, Manifest
from fedvlp.data.domain_folders import ImageFile, classes_of, spellings
from fedvlp.data.files.images import content_digest, copies, decode_all
from fedvlp.data.module import ids_among


class Findings(NamedTuple):
    """Lines on what must be mended, none if the images are those that were published; and on what is good to know."""

    problems: list[str]
    notes: list[str]


def compare(manifest: Manifest, description: Description | None) -> Findings:
    """Compares images on disk with what was published, if that is known, and reads each of them."""
    problems = differences(manifest, description)
    if description is None:
        for names in spellings(manifest.files):
            problems.append(f"one class in {len(names)} spellings: {', '.join(names)} (see data.merge_spellings)")
    unreadable_images = []
    digests: dict[ImageFile, str] = {}
    for domain, files in manifest.files.items():
        on_disk = [image for image in files if image.pixels is None]
        bad, found = decode_all([image.path for image in on_disk], f"reading {domain}")
        digests |= dict(zip(on_disk, found, strict=True))
        digests |= {image: content_digest(image.pixels.tobytes()) for image in files if image.pixels is not None}
        unreadable_images += [f"{on_disk[row].name} ({reason})" for row, reason in bad.items()]
    if unreadable_images:
        problems.append(f"{len(unreadable_images)} images can't be read: {some(unreadable_images, most=5)}")
    leaks, repeated = duplicates(digests)
    notes = list(manifest.notes)
    if description is None and (ids := ids_among(sorted(set().union(*classes_of(manifest.files).values())))):
        notes.append(ids)
    if leaks:
        line = f"{len(leaks)} images lie in two domains, or in two parts of the split: {some(leaks, most=5)}"
        # Whoever published them with copies has them so on every machine.
        is_published = description is not None and description.has_copies
        (notes if is_published else problems).append(line)
    if repeated:
        notes.append(
            f"{len(repeated)} images are there twice in one domain, so a split that is drawn may have them on both "
            f"sides: {some(repeated, most=5)}"
        )
    return Findings(problems, notes)


def differences(manifest: Manifest, description: Description | None) -> list[str]:
    """Returns a line for each domain that is not as it was published, or lacks a class that another domain has."""
    if description is not None:
        description = description.in_layout(manifest.layout, manifest.files)
    lines = []
    for domain in manifest.files:
        differences: list[str] = []
        if description is not None:
            differences += _image_count(manifest, domain, description)
            differences += _split_counts(manifest, domain, description)
        differences += _missing_classes(manifest, domain, description)
        if differences:
            lines.append(f"{domain}: {'; '.join(differences)}")
    return lines


def _image_count(manifest: Manifest, domain: str, description: Description) -> list[str]:
    """Returns how many images there are, with the classes that differ, if that is not what was published."""
    counts = Counter(image.class_name for image in manifest.files[domain])
    # Images that are known to be bad were published and are left out here, so they count as present.
    counts += Counter(name.split("/")[1] for name in _known_bad(manifest, domain))
    published = description.counts.get(domain, {})
    wrong = [f"{name} {counts[name] - number:+,}" for name, number in published.items() if counts[name] != number]
    total = counts.total()
    expected = description.domain_counts[domain]
    if not wrong and expected in (None, total):
        return []
    if total != expected:
        message = f"{total:,} images, {expected:,} published"
    else:
        message = f"{total:,} images in all, as published"
    return [f"{message} ({some(wrong, most=5)})" if wrong else message]


def _split_counts(manifest: Manifest, domain: str, description: Description) -> list[str]:
    """Returns the parts of the official split that have another number of images than was published."""
    published = description.split_counts.get(domain, {}) if manifest.split else {}
    counts = manifest.role_counts(domain)
    # Which part a known bad image would be in is not known.
    bad = len(_known_bad(manifest, domain))
    return [
        f"{counts[role]:,} {role} images, {number:,} published"
        for role, number in published.items()
        if not 0 <= number - counts[role] <= bad
    ]


def _known_bad(manifest: Manifest, domain: str) -> list[str]:
    """Returns the images of a domain that were published, but are left out as they can't be read."""
    return [name for name in manifest.left_out.get(KNOWN_BAD, ()) if name.startswith(f"{domain}/")]


def _missing_classes(manifest: Manifest, domain: str, description: Description | None) -> list[str]:
    """Returns the classes that a domain lacks, where no counts by class have said so."""
    if description and (description.may_lack_classes or domain in description.counts):
        return []
    if description:
        expected = set(description.domain_classes.get(domain, description.class_names))
    else:
        expected = {image.class_name for image in chain.from_iterable(manifest.files.values())}
    lacking = sorted(expected - {image.class_name for image in manifest.files[domain]})
    return [f"no image of {some(lacking, most=5)}"] if lacking else []


def duplicates(digests: Mapping[ImageFile, str]) -> tuple[list[str], list[str]]:
    """Pair the names of images with the same digest: in two domains or parts of the split, and in one."""
    leaks: list[str] = []
    repeated: list[str] = []
    for first, *others in sorted(map(sorted, copies(digests, digests.values()))):
        for other in others:
            # Within one part a copy does no harm, unless a split is drawn that tears the two apart.
            is_leak = (first.domain, first.role) != (other.domain, other.role)
            (leaks if is_leak else repeated).append(f"{first.name} = {other.name}")
    return leaks, repeated
