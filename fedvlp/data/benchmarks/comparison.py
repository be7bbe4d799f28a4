"""Compare images on disk with a published data set, and find copies of images."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np

from fedvlp.catalog.description import Description
from fedvlp.data.benchmarks.manifest import KNOWN_BAD, Manifest
from fedvlp.data.class_names import describe_ids, spellings
from fedvlp.data.files.images import content_digest, decode_all, group_copies
from fedvlp.data.rows import ImageFile, label_targets
from fedvlp.utils.errors import shorten


class Findings(NamedTuple):
    """Problems, empty if the images match the published data set; and notes that are only informative."""

    problems: list[str]
    notes: list[str]


def compare(manifest: Manifest, description: Description | None) -> Findings:
    """Read all images on disk and compare them with the published data set, if there is a description."""
    problems = differences(manifest, description)
    notes = list(manifest.notes)
    if description is None:
        for names in spellings(manifest.files, several_labels=manifest.several_labels):
            problems.append(f"one class in {len(names)} spellings: {', '.join(names)} (see data.merge_spellings)")
        if ids := describe_ids(sorted(set().union(*map(manifest.classes, manifest.files)))):
            notes.append(ids)
        roles: dict[str, set[str]] = defaultdict(set)
        for image in chain.from_iterable(manifest.files.values()):
            roles[image.group if image.role else ""].add(image.role or "")
        if divided := sorted(group for group, found in roles.items() if group and len(found) > 1):
            problems.append(f"{len(divided)} groups are in several parts of the split: {shorten(divided, most=5)}")
    unreadable: list[str] = []
    digests: dict[ImageFile, str] = {}
    for domain, files in manifest.files.items():
        on_disk = [image for image in files if image.pixels is None]
        bad, disk_digests = decode_all([image.path for image in on_disk], f"reading {domain}")
        digests |= dict(zip(on_disk, disk_digests, strict=True))
        digests |= {image: content_digest(image.pixels.tobytes()) for image in files if image.pixels is not None}
        unreadable += [f"{on_disk[row].name} ({reason})" for row, reason in bad.items()]
    if unreadable:
        problems.append(f"{len(unreadable)} images can't be read: {shorten(unreadable, most=5)}")
    leaks, repeated = _copies(digests)
    if leaks:
        # Data sets that were published with copies have them on every machine.
        is_published = description is not None and description.has_copies
        line = f"{len(leaks)} images are in two domains, or in two parts of the split: {shorten(leaks, most=5)}"
        (notes if is_published else problems).append(line)
    if repeated:
        notes.append(
            f"{len(repeated)} images occur twice in one domain, so a random split may have them on both sides: "
            f"{shorten(repeated, most=5)}"
        )
    return Findings(problems, notes)


def differences(manifest: Manifest, description: Description | None) -> list[str]:
    """Describe each domain that differs from the published domain, or lacks a class that another domain has."""
    lines = []
    for domain in manifest.files:
        differing = [] if description is None else _count_differences(manifest, domain, description)
        differing += _missing_classes(manifest, domain, description)
        if differing:
            lines.append(f"{domain}: {'; '.join(differing)}")
    return lines


def _count_differences(manifest: Manifest, domain: str, description: Description) -> list[str]:
    # Known bad images were published but are skipped, so they count as present.
    bad = [name for name in manifest.skipped.get(KNOWN_BAD, ()) if name.startswith(f"{domain}/")]
    classes = [image.class_name for image in manifest.files[domain]]
    if manifest.several_labels:
        labels, targets = label_targets(classes)
        classes = np.repeat(labels, (targets == 1).sum(0)).tolist()
    counts = Counter(classes) + Counter(name.split("/")[1] for name in bad)
    published = description.counts.get(domain, {})
    wrong = [f"{name} {counts[name] - number:+,}" for name, number in published.items() if counts[name] != number]
    total = len(manifest.files[domain]) + len(bad)
    expected = description.counts_in(manifest.layout)[domain]
    lines = []
    if wrong or expected not in (None, total):
        origin = " in all, as" if total == expected else f", {expected:,}"
        message = f"{total:,} images{origin} published"
        lines.append(f"{message} ({shorten(wrong, most=5)})" if wrong else message)
    if manifest.split and manifest.layout is not None:
        roles = manifest.role_counts(domain)
        for role, number in manifest.layout.split_counts.get(domain, {}).items():
            # The part that contains a bad image is unknown.
            if not 0 <= number - roles[role] <= len(bad):
                lines.append(f"{roles[role]:,} {role} images, {number:,} published")
    return lines


def _missing_classes(manifest: Manifest, domain: str, description: Description | None) -> list[str]:
    """Describe the classes that a domain lacks, unless published counts by class already show them."""
    if description is None and manifest.several_labels:
        return []
    if description is None:
        expected = {image.class_name for image in chain.from_iterable(manifest.files.values())}
    elif domain in description.counts:
        return []
    else:
        expected = set(description.class_names) - description.gaps.get(domain, frozenset())
    missing = sorted(expected - manifest.classes(domain))
    return [f"no image of {shorten(missing, most=5)}"] if missing else []


def _copies(digests: Mapping[ImageFile, str]) -> tuple[list[str], list[str]]:
    """Pair the names of images with the same digest: across domains or parts of the split, and within one part."""
    leaks: list[str] = []
    repeated: list[str] = []
    for first, *others in sorted(map(sorted, group_copies(digests, digests.values()))):
        for other in others:
            # Within one part a copy is harmless, unless a random split separates the two.
            is_leak = (first.domain, first.role) != (other.domain, other.role)
            (leaks if is_leak else repeated).append(f"{first.name} = {other.name}")
    return leaks, repeated
