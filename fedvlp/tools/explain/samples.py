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

    pixels: Float[Tensor, "B 3 V V"]
    names: list[str]
    labels: Int[Tensor, "B"]
    domains: list[str]

    def __len__(self) -> int:
        return len(self.names)

    def title(self, row: int, class_names: Sequence[str]) -> str:
        """Returns what stands above an image: its domain and class, or its name."""
        label = int(self.labels[row])
        if label < 0:
            return self.names[row].split("/")[-1]
        return f"{self.domains[row]}: {class_names[label]}"

    def part(self, start: int, stop: int) -> Samples:
        """Returns some of the images."""
        return Samples(
            self.pixels[start:stop],
            self.names[start:stop],
            self.labels[start:stop],
            self.domains[start:stop],
        )


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
class RunImage:
    """One image of a run, not yet read.

    Attributes:
        domain: its domain.
        name: its name.
        dataset: from which it is read, with its label.
        index: its own in the dataset.
    """

    domain: str
    name: str
    dataset: Dataset[tuple[Tensor, int]]
    index: int


@dataclass(frozen=True)
class _Split:
    domain: str
    dataset: Dataset[tuple[Tensor, int]]
    names: list[str]

    def spread_images(self, count: int) -> list[RunImage]:
        """Returns up to ``count`` of its images, evenly spread."""
        indices = spread(len(self.names), count)
        return [RunImage(self.domain, self.names[index], self.dataset, index) for index in indices]


def run_images(data: FederatedDataModule, count: int) -> list[RunImage]:
    """Returns images of the held-out domains, else of the test splits, else of validation, evenly spread over each.

    Args:
        data: Set up, and bound to the method's transform.
        count: How many images in all; fewer if there are fewer.
    """
    splits = _splits(data)
    images: list[RunImage] = []
    for place, split in enumerate(splits):
        # The first splits get one image more where the count is no multiple of their number.
        share = count // len(splits) + (place < count % len(splits))
        images += split.spread_images(share)
    return images


def read_samples(images: Sequence[RunImage]) -> Samples:
    """Returns images of a run with their labels."""
    pixels, labels = zip(*(image.dataset[image.index] for image in images), strict=True)
    names = [image.name for image in images]
    domains = [image.domain for image in images]
    return Samples(torch.stack(pixels), names, torch.tensor(labels), domains)


def spread(total: int, count: int) -> list[int]:
    """Returns up to ``count`` of ``total`` indices, each in the middle of an equal part.

    >>> spread(10, 2), spread(2, 5)
    ([2, 7], [0, 1])
    """
    chosen = min(total, count)
    return [(2 * part + 1) * total // (2 * chosen) for part in range(chosen)]


def visible(clip: CLIP, pixels: Float[Tensor, "B 3 V V"]) -> NDArray[np.float32]:
    """Returns transformed images as pictures [B, V, V, 3] in [0, 1], as the tower sees them: resized and cropped."""
    options: Any = clip.preprocess_options
    mean = torch.tensor(options.mean)[:, None, None]
    deviation = torch.tensor(options.std)[:, None, None]
    pictures = (pixels.cpu().float() * deviation + mean).clamp(0, 1)
    shown: NDArray[np.float32] = pictures.permute(0, 2, 3, 1).numpy()
    return shown


def _splits(data: FederatedDataModule) -> list[_Split]:
    """Returns the splits of the farthest role from training that there is."""
    present = [split.role for split in data.evaluation_splits()]
    role = next(known for known in ("held_out", "test", "validation") if known in present)
    if role == "validation":
        loaders = data.val_dataloader()
        served = ["validation"]
    else:
        loaders = data.test_dataloader()
        served = ["test", "held_out"]
    # The loaders stand in the order of the table, among those of the roles that they serve together.
    entries = [entry for entry in data.split_table() if entry["role"] in served]
    splits = []
    for entry, loader in zip(entries, loaders, strict=True):
        if entry["role"] == role:
            dataset: Any = loader.dataset
            splits.append(_Split(entry["domain"], dataset, entry["images"]))
    return splits
