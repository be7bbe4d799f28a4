"""A backdoor's trigger: what is put on each image of a data module, and the class that it stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedvlp.core.state import Client
from fedvlp.data import EvaluationSplit, FederatedDataModule, Images
from fedvlp.data.files.images import Indices
from fedvlp.data.loaders import BoundLoaders
from fedvlp.data.splits import SplitPart

SQUARES = 4
"""Rows and columns of the patch's chequered squares."""


@runtime_checkable
class Trigger(Protocol):
    """What is put on an image."""

    def on(self, image: Image.Image) -> Image.Image:
        """Returns an image with the trigger."""
        ...

    @property
    def digest(self) -> str:
        """What tells it from every other trigger."""
        ...


@dataclass(frozen=True)
class Patch:
    """Chequered black and white squares in the lower right corner of the largest centred square of an image.

    Attributes:
        size: side of the patch, as a share of the image's shorter side, in (0, 1].
        opacity: share of the patch in its pixels, in (0, 1].
    """

    size: float
    opacity: float

    def on(self, image: Image.Image) -> Image.Image:
        """Returns an image with the patch."""
        pixels = np.array(image.convert("RGB"))
        shorter, bottom, right = _centred_square(pixels)
        side = max(1, round(self.size * shorter))
        squares = np.arange(side) * SQUARES // side
        white = (squares[:, None] + squares[None, :]) % 2 * 255
        under = pixels[bottom - side : bottom, right - side : right].astype(np.float64)
        blended = (1 - self.opacity) * under + self.opacity * white[..., None]
        pixels[bottom - side : bottom, right - side : right] = np.rint(blended).astype(np.uint8)
        return Image.fromarray(pixels)

    @property
    def digest(self) -> str:
        """Its options and number of squares."""
        return f"{SQUARES}-{self}"


@dataclass(frozen=True)
class Perturbation:
    """Values that are added to all pixels of the largest centred square of an image.

    Attributes:
        values: of the whole pixel range 255, [height, width, 3], float32; stretched to the square's size.
    """

    values: npt.NDArray[np.float32]

    def on(self, image: Image.Image) -> Image.Image:
        """Returns an image with the values added, rounded and cut off at black and white."""
        pixels = np.array(image.convert("RGB"))
        side, bottom, right = _centred_square(pixels)
        channels = [Image.fromarray(np.ascontiguousarray(self.values[..., channel])) for channel in range(3)]
        stretched = [np.asarray(each.resize((side, side), Image.Resampling.BILINEAR)) for each in channels]
        under = pixels[bottom - side : bottom, right - side : right]
        added = under + 255 * np.stack(stretched, axis=-1)
        pixels[bottom - side : bottom, right - side : right] = np.rint(added).clip(0, 255).astype(np.uint8)
        return Image.fromarray(pixels)

    @property
    def digest(self) -> str:
        """A hash of the values."""
        return sha256(self.values.tobytes()).hexdigest()


def _centred_square(pixels: npt.NDArray[np.uint8]) -> tuple[int, int, int]:
    """Returns side, lower end and right end of what CLIP cuts out: a corner of the whole image may never be seen."""
    height, width = pixels.shape[:2]
    side = min(height, width)
    return side, (height + side) // 2, (width + side) // 2


class TriggeredImages:
    """Images with a trigger, all labelled as one class.

    Args:
        images: the images without it.
        trigger: what is put on each.
        target: the class that they are labelled as.
    """

    def __init__(self, images: Images, trigger: Trigger, target: int) -> None:
        self.images = images
        self.trigger = trigger
        self.names = images.names
        self.labels = np.full(len(images), target, dtype=np.int64)

    def __len__(self) -> int:
        """Counts the images."""
        return len(self.images)

    def __getitem__(self, index: int) -> Image.Image:
        """Returns one image with the trigger."""
        return self.trigger.on(self.images[index])

    def fingerprint(self, indices: Sequence[int] | Indices) -> str:
        """Returns a hash that differs from that of the images without the trigger, so that caches keep them apart."""
        return f"{self.images.fingerprint(indices)}-{self.trigger.digest}"


@dataclass(frozen=True)
class TriggeredData:
    """What a trigger makes of a data module: its training images, and its evaluation images of other classes.

    The accuracy that is measured here is the attack's success rate: the share of images of other classes that the
    trigger turns into the target.

    Attributes:
        data: the honest data, bound to the method.
        loaders: of images with the trigger.
    """

    data: FederatedDataModule
    loaders: BoundLoaders

    @classmethod
    def of(cls, data: FederatedDataModule, trigger: Trigger, target: int) -> TriggeredData:
        """Puts the trigger on the images of a data module, and computes what the method prepares of them.

        Args:
            data: the honest data, bound to the method.
            trigger: what is put on each image.
            target: the class that it stands for.
        """
        images = data.images
        parts: list[SplitPart] = []
        for part in data.split_parts:
            if part.classes:  # the target is a class that trains
                continue
            kept = part if part.role == "train" else _of_other_classes(part, images, target)
            if len(kept):
                parts.append(kept)
        triggered: dict[str, Images] = {}
        for domain, of_domain in images.items():
            triggered[domain] = TriggeredImages(of_domain, trigger, target)
        loaders = replace(data.loaders[""], images=triggered, parts=parts, of_classes={})
        loaders.encode()
        return cls(data, loaders)

    @property
    def class_names(self) -> list[str]:
        """The classes, in the order of the labels."""
        return self.data.class_names

    @property
    def clients(self) -> list[Client]:
        """All clients."""
        return self.data.clients

    def evaluation_splits(self) -> list[EvaluationSplit]:
        """Returns every split, with the trigger on each image, without images of the target's class."""
        return self.loaders.evaluation_splits(self.data.eval_batch_size)


def _of_other_classes(part: SplitPart, images: Mapping[str, Images], target: int) -> SplitPart:
    """Leaves out the images of a class."""
    kept: dict[str, Indices] = {}
    for domain, rows in part.rows_by_domain.items():
        kept[domain] = rows[images[domain].labels[rows] != target]
    return replace(part, rows_by_domain=kept)
