"""The images that are looked at: files, or those of a run on which nobody trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from fedvlp.clip import CLIP
from fedvlp.data import FederatedDataModule
from fedvlp.data.files.images import ImageFiles, image_paths


@dataclass(frozen=True)
class Samples:
    """Images as the image tower reads them.

    Attributes:
        pixels: of the images, transformed.
        names: what each is called.
        labels: the class of each; -1 where it is not known.
        domains: the domain of each; empty where it is not known.
    """

    pixels: Float[Tensor, "B 3 H V"]
    names: list[str]
    labels: Int[Tensor, "B"]
    domains: list[str]

    def __len__(self) -> int:
        return len(self.names)

    def title(self, row: int, class_names: Sequence[str]) -> str:
        """Returns what stands above an image: its domain and class, or its name."""
        label = int(self.labels[row])
        return self.names[row].split("/")[-1] if label < 0 else f"{self.domains[row]}: {class_names[label]}"

    def part(self, start: int, stop: int) -> Samples:
        """Returns some of the images."""
        chosen = slice(start, stop)
        return Samples(self.pixels[chosen], self.names[chosen], self.labels[chosen], self.domains[chosen])


def samples_of_files(paths: Sequence[str], clip: CLIP) -> Samples:
    """Returns image files and those in folders, without labels.

    Raises:
        UserError: If one does not exist or can't be read.
    """
    files = ImageFiles(image_paths(paths), clip.preprocess)
    pixels = torch.cat([batch for _, batch in files])
    names = [f"{path.parent.name}/{path.name}" for path in files.paths]
    return Samples(pixels, names, torch.full((len(names),), -1), [""] * len(names))


@dataclass(frozen=True)
class Row:
    """One image of a run, not yet read.

    Attributes:
        domain: its domain.
        name: its name.
        dataset: where it is read, with its label.
        place: its index there.
    """

    domain: str
    name: str
    dataset: Dataset[tuple[Tensor, int]]
    place: int


def rows_of_run(data: FederatedDataModule, count: int) -> list[Row]:
    """Returns images of the held-out domains, else of the test splits, else of validation, evenly spread over each.

    Args:
        data: Set up, and bound to the method's transform.
        count: How many images in all; fewer if there are fewer.
    """
    splits = _splits(data)
    shares = [count // len(splits) + (place < count % len(splits)) for place in range(len(splits))]
    return [
        Row(domain, names[place], dataset, place)
        for (domain, dataset, names), share in zip(splits, shares, strict=True)
        for place in spread(len(names), share)
    ]


def read_samples(rows: Sequence[Row]) -> Samples:
    """Returns images of a run with their labels."""
    pixels, labels = zip(*(row.dataset[row.place] for row in rows), strict=True)
    return Samples(torch.stack(pixels), [row.name for row in rows], torch.tensor(labels), [row.domain for row in rows])


def spread(total: int, count: int) -> list[int]:
    """Returns up to `count` of `total` places, each in the middle of an equal part.

    >>> spread(10, 2), spread(2, 5)
    ([2, 7], [0, 1])
    """
    chosen = min(total, count)
    return [(2 * place + 1) * total // (2 * chosen) for place in range(chosen)]


def visible(clip: CLIP, pixels: Float[Tensor, "B 3 H V"]) -> NDArray[np.float32]:
    """Returns transformed images as pictures [B, H, V, 3] in [0, 1], as the tower sees them: resized and cropped."""
    options: Any = clip.preprocess_options
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (options.mean, options.std))
    pictures = (pixels.cpu().float() * deviation + mean).clamp(0, 1)
    shown: NDArray[np.float32] = pictures.permute(0, 2, 3, 1).numpy()
    return shown


def _splits(data: FederatedDataModule) -> list[tuple[str, Any, list[str]]]:
    """Returns domain, dataset and names of the splits of the farthest role from training that there is."""
    roles = [split.role for split in data.evaluation_splits()]
    role = next(known for known in ("held_out", "test", "validation") if known in roles)
    loaders = data.val_dataloader() if role == "validation" else data.test_dataloader()
    tested = [entry for entry in data.split_table() if entry["role"] in _served(role)]
    pairs = zip(tested, loaders, strict=True)
    return [(entry["domain"], loader.dataset, entry["images"]) for entry, loader in pairs if entry["role"] == role]


def _served(role: str) -> tuple[str, ...]:
    """Returns the roles that one of the data's loaders serves together."""
    return ("validation",) if role == "validation" else ("test", "held_out")
