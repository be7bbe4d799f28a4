"""Classes of image files by the folders in which they lie: ``CLASS/image`` or ``DOMAIN/CLASS/image``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedvlp.core.predictions import Predictions
from fedvlp.data.files.layout import composed


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
