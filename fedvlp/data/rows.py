"""The rows that describe a data set, one per image, and their labels.

If images have several labels, the class of an image is the set of its labels, a string such as ``dog|tree`` or
``dog|?tree``. ``?`` marks an unknown label, and an image without labels has the empty string.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from fedvlp.core.roles import ImageRole
from fedvlp.core.several_labels import SEPARATOR
from fedvlp.data.files.images import ArrayImages, FolderImages, Images

UNKNOWN = "?"
GIVEN_ROLES: tuple[ImageRole, ...] = ("train", "validation", "test")
"""The roles that a data set may give to its images, in the order of their names in results."""
ROLE_OF_PART: Mapping[str, ImageRole] = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip
"""The role of each name that a part of a split may have, in lower case."""


@dataclass(frozen=True, order=True, slots=True)
class ImageFile:
    """One image of a data set; sorts by domain, class and name.

    Attributes:
        domain: Name of its domain; in folders, the folder below the root.
        class_name: Name of its class, or the set of its labels; in folders, the folder below the domain's folder.
        name: Name in splits; in folders, ``domain/class/image``. All names are in composed Unicode (NFC).
        path: Path in the file system.
        role: Role in an official split, or None.
        client: Name of the client that trains on it; "" if the partition chooses one.
        group: The patient, camera or other source that it shares with other images; "" if it has none.
        pixels: uint8 of shape [H, W, 3], RGB, unless the image is a file.
    """

    domain: str
    class_name: str
    name: str
    path: str
    role: ImageRole | None = field(default=None, compare=False)
    client: str = field(default="", compare=False)
    group: str = field(default="", compare=False)
    pixels: NDArray[np.uint8] | None = field(default=None, compare=False)


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


def name_roles(domains: Mapping[str, Sequence[ImageFile]]) -> str:
    """Name the roles that images have, such as "train/test"; empty if no image has one."""
    roles = {file.role for files in domains.values() for file in files}
    return "/".join(role for role in GIVEN_ROLES if role in roles)


def split_labels(labels: str) -> list[str]:
    """List the labels of a set, without the marks of unknown labels.

    >>> split_labels("dog|?tree"), split_labels("")
    (['dog', 'tree'], [])
    """
    return [label.removeprefix(UNKNOWN) for label in labels.split(SEPARATOR) if label]


def rename_labels(labels: str, name_of: Mapping[str, str]) -> str:
    """Rename some labels of a set, and sort all; a label that is both present and unknown is present.

    >>> rename_labels("tree| ?Dog|dog|?cat|", {"Dog": "dog"})
    '?cat|dog|tree'
    """
    is_unknown: dict[str, bool] = {}
    for part in filter(None, map(str.strip, labels.split(SEPARATOR))):
        label = part.removeprefix(UNKNOWN).strip()
        name = name_of.get(label, label)
        is_unknown[name] = part.startswith(UNKNOWN) and is_unknown.get(name, True)
    return SEPARATOR.join(UNKNOWN * is_unknown[name] + name for name in sorted(is_unknown))


def label_targets(sets: Sequence[str]) -> tuple[list[str], Float[np.ndarray, "sets labels"]]:
    """List the labels of all sets, sorted, and each set's target of each label: 1, 0, or NaN if it is unknown.

    >>> labels, targets = label_targets(["dog|tree", "", "cat|?dog"])
    >>> labels
    ['cat', 'dog', 'tree']
    >>> targets.tolist()
    [[0.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, nan, 0.0]]
    """
    parts = [[label for label in labels.split(SEPARATOR) if label] for labels in sets]
    names = sorted({label.removeprefix(UNKNOWN) for each in parts for label in each})
    position = {name: index for index, name in enumerate(names)}
    targets = np.zeros((len(sets), len(names)), np.float32)
    for row, each in enumerate(parts):
        for label in each:
            targets[row, position[label.removeprefix(UNKNOWN)]] = np.nan if label.startswith(UNKNOWN) else 1
    return names, targets


def by_rarest_label(images: Mapping[str, Images], targets: Float[np.ndarray, "sets labels"]) -> dict[str, Images]:
    """Replace each image's set by its rarest label in the domain, or by the number of labels L if it has none.

    Most sets have few images, so that splits and partitions are stratified by the rarest label.
    """
    strata: dict[str, Images] = {}
    for domain, domain_images in images.items():
        is_present = targets[domain_images.labels] == 1
        counts = np.where(is_present, is_present.sum(0), np.inf)
        strata[domain] = copy.copy(domain_images)
        strata[domain].labels = np.where(is_present.any(1), counts.argmin(1), targets.shape[1])
    return strata
