"""CoOp's split: a JSON file with the lists train, val and test of [path, label, class name]."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvlp.data.benchmarks.forms.pictures import Picture, check_there, known_class, path_inside
from fedvlp.data.benchmarks.layouts import some
from fedvlp.data.catalog import Description, SplitName
from fedvlp.data.catalog.forms import SplitFile
from fedvlp.utils.errors import UserError

ROLES: Mapping[str, SplitName] = {"train": "train", "val": "validation", "test": "test"}


def read_split_file(folder: Path, part: SplitFile, description: Description) -> list[Picture]:
    """Returns the images of CoOp's split.

    Raises:
        UserError: if the file is damaged or of another data set, contradicts itself, or names images that are missing.
    """
    path = folder / part.file
    images = folder / part.images
    (domain,) = description.domains
    pictures: list[Picture] = []
    labels: dict[str, set[int]] = defaultdict(set)
    known: dict[str, str] = {}
    for split, entries in _content(path).items():
        for image, label, name in entries:
            if name not in known:
                known[name] = known_class(name, description, str(path))
            labels[known[name]].add(label)
            pictures.append(Picture(domain, known[name], path_inside(images, image, path), ROLES[split]))
    _check_labels(labels, path)
    check_there(pictures, images, str(path))
    return pictures


def _content(path: Path) -> dict[str, list[tuple[str, int, str]]]:
    """Reads the three lists.

    Raises:
        UserError: if the file is not made so.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {split: list(map(_entry, content[split])) for split in ROLES}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"Expected {path} to hold the lists train, val and test of [path, label, class name]; it can't be read so "
            f"({type(error).__name__}: {error}). Get it again from CoOp's DATASETS.md, or take it away."
        ) from error


def _entry(entry: Any) -> tuple[str, int, str]:
    """Returns one entry of a list; raises ValueError if it is none."""
    image, label, name = entry
    if not (isinstance(image, str) and type(label) is int and isinstance(name, str)):
        raise ValueError(f"an entry is {str(entry)[:80]}")
    return image, label, name


def _check_labels(labels: Mapping[str, set[int]], path: Path) -> None:
    """Raises UserError unless each class has one label and each label one class; which is whose does not matter."""
    owners: dict[int, list[str]] = defaultdict(list)
    wrong = []
    for name, numbers in labels.items():
        if len(numbers) > 1:
            wrong.append(f"{name} has {', '.join(map(str, sorted(numbers)))}")
        for number in numbers:
            owners[number].append(name)
    wrong += [f"{' and '.join(names)} both have {number}" for number, names in owners.items() if len(names) > 1]
    if wrong:
        raise UserError(f"The labels in {path} contradict its class names: {some(wrong, most=5)}. Get it again.")
