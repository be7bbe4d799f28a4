"""What a protocol makes of the parts of a split that measure: base and new classes, clients' own images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedvlp.core.roles import MeasuredRole
from fedvlp.data.files.images import Images, Indices
from fedvlp.data.splits import SplitPart

OF_NEW: dict[str, MeasuredRole] = {"test": "test_new", "held_out": "held_out_new"}
"""The role of new classes' images beside that of base classes."""


def base_and_new_parts(
    parts: Sequence[SplitPart], images: Mapping[str, Images], num_base: int, num_classes: int
) -> list[SplitPart]:
    """Divides test and held-out images into those of base and those of new classes, each told from its own kind alone.

    Args:
        parts: the parts of a split, in their order; training and validation images are of base classes already.
        images: images by domain.
        num_base: how many classes, the first ones, train.
        num_classes: how many there are.

    Returns:
        The parts, those of new classes behind the others of their role; without those that are empty.
    """
    found = [part for part in parts if part.role not in OF_NEW]
    for role, role_of_new in OF_NEW.items():
        of_role = [part for part in parts if part.role == role]
        found += [_of_classes(part, images, range(num_base)) for part in of_role]
        new = range(num_base, num_classes)
        found += [replace(_of_classes(part, images, new), role=role_of_new, classes=tuple(new)) for part in of_role]
    return [part for part in found if len(part)]


def local_parts(parts: Sequence[SplitPart], images: Mapping[str, Images], num_base: int) -> list[SplitPart]:
    """Returns for each client the test images, of its domains, of the classes that it trains on, told from each other.

    Args:
        parts: the parts of a split, test parts among them.
        images: images by domain.
        num_base: how many classes, the first ones, train.
    """
    found = []
    for part in parts:
        if part.role != "train":
            continue
        classes = classes_of(part, images)
        rows: dict[str, Indices] = {}
        for test in parts:
            if test.role == "test" and test.domains[0] in part.rows_by_domain:
                rows |= _of_classes(test, images, classes).rows_by_domain
        own = SplitPart("local", {domain: of_domain for domain, of_domain in rows.items() if len(of_domain)})
        others = () if len(classes) == num_base else tuple(classes)
        found.append(replace(own, clients=part.clients, classes=others))
    return [part for part in found if len(part)]


def classes_of(part: SplitPart, images: Mapping[str, Images]) -> list[int]:
    """Returns the labels of a part's images, ascending."""
    found: set[int] = set()
    for domain, rows in part.rows_by_domain.items():
        found.update(images[domain].labels[rows].tolist())
    return sorted(found)


def _of_classes(part: SplitPart, images: Mapping[str, Images], classes: Sequence[int]) -> SplitPart:
    """Leaves out the images of other classes."""
    kept = {}
    for domain, rows in part.rows_by_domain.items():
        kept[domain] = rows[np.isin(images[domain].labels[rows], np.asarray(classes))]
    return replace(part, rows_by_domain=kept)
