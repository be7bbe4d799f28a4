"""Several labels per image: the set of an image's labels as its class in data sets and splits.

An image's set is a string such as ``dog|tree`` or ``dog|?tree``; ``?`` marks an unknown label, and an
image without labels has the empty string.
"""

import copy
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from fedvlp.core.several_labels import SEPARATOR
from fedvlp.data.files.images import Images

UNKNOWN = "?"


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
