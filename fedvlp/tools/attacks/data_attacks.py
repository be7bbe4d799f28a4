"""Attacks on training data: hostile clients train on wrong labels, or on images with a backdoor's trigger."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from lightning import Fabric
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils._pytree import tree_map

from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import Batch, FederatedData, Loader, TrainingData
from fedvlp.core.state import Client, State
from fedvlp.data import EvaluationSplit, FederatedDataModule, Images
from fedvlp.data.files.images import Indices
from fedvlp.data.loaders import BoundLoaders
from fedvlp.training.cohort import Attack
from fedvlp.training.evaluation import evaluate
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import FractionAboveZero
from fedvlp.utils.seeding import derive_seed

POISON = 0x506F69
"""Marks the draw of poisoned images among all that depends on the seed of a client's batches."""
SQUARES = 4
"""Rows and columns of the patch's chequered squares."""


@dataclass(frozen=True)
class ChangedBatches:
    """Batches of which each pass is changed as a whole."""

    loader: Loader
    change: Callable[[Iterator[Batch]], Iterator[Batch]]

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        """Passes over the batches once."""
        return self.change(iter(self.loader))


@dataclass(frozen=True)
class PoisonedData:
    """The same clients, of whom hostile ones train on poisoned batches.

    Args:
        data: the honest data.
        hostile: ids of the hostile clients.
        poison: from a client's honest batches, the client and their seed to those that it trains on.
    """

    data: TrainingData
    hostile: frozenset[int]
    poison: Callable[[Loader, Client, int], Loader]

    @property
    def clients(self) -> list[Client]:
        """All clients."""
        return self.data.clients

    @property
    def batch_size(self) -> int:
        """Images in a batch."""
        return int(getattr(self.data, "batch_size", 1))

    def train_dataloader(self, client: Client | None = None, seed: int | None = None) -> Loader:
        """Returns one client's batches, poisoned if it is hostile."""
        # A loader without client or seed is no client's, as that of a plain Trainer.
        loader = self.data.train_dataloader(client, seed=seed)
        if client is None or seed is None or client.id not in self.hostile:
            return loader
        return self.poison(loader, client, seed)


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Hostile clients train on wrong labels, C - 1 - c for class c of C (Fang et al., USENIX Security 2020).

    They label the images that they evaluate on rightly, as accuracy is the simulation's own.

    Args:
        clients: How many clients are hostile: a number, or a share below 1, rounded down.
        seed: Seed of the choice of hostile clients.
    """

    clients: float = 0.3
    seed: int = 0

    def training_data(self, data: FederatedData, module: FederatedModule) -> TrainingData:
        """Returns the data with flipped labels on hostile clients."""
        # By batch: what is precomputed of the images is unchanged.
        highest = len(data.class_names) - 1

        def flip(batches: Iterator[Batch]) -> Iterator[Batch]:
            for inputs, labels in batches:
                yield inputs, highest - labels

        return PoisonedData(data, self.hostile(data.clients), lambda loader, *_: ChangedBatches(loader, flip))


class Trigger(ABC):
    """What is put on an image, in its largest centred square.

    CLIP's transform cuts that square out: a corner of the whole image may never be seen.
    """

    def on(self, image: Image.Image) -> Image.Image:
        """Returns an image with the trigger."""
        # A copy: the image without the trigger is unchanged.
        pixels = np.array(image.convert("RGB"))
        height, width = pixels.shape[:2]
        side = min(height, width)
        top = (height + side) // 2 - side
        left = (width + side) // 2 - side
        changed = self.changed(pixels[top : top + side, left : left + side])
        pixels[top : top + side, left : left + side] = np.rint(changed).clip(0, 255).astype(np.uint8)
        return Image.fromarray(pixels)

    @abstractmethod
    def changed(self, square: NDArray[np.uint8]) -> NDArray[Any]:
        """Returns the pixels [side, side, 3] of a square with the trigger, of the range 255, not yet rounded."""
        ...


@dataclass(frozen=True)
class Patch(Trigger):
    """Chequered black and white squares in the lower right corner.

    Attributes:
        size: side of the patch, as a share of the image's shorter side, in (0, 1].
        opacity: share of the patch in its pixels, in (0, 1].
    """

    size: float
    opacity: float

    def changed(self, square: NDArray[np.uint8]) -> NDArray[Any]:
        """Returns a square with the patch."""
        side = max(1, round(self.size * len(square)))
        # Squares differ by a pixel where the side is no multiple of their number.
        squares = np.arange(side) * SQUARES // side
        white = (squares[:, None] + squares[None, :]) % 2 * 255
        blended = square.astype(np.float64)
        blended[-side:, -side:] = (1 - self.opacity) * blended[-side:, -side:] + self.opacity * white[..., None]
        return blended


@dataclass(frozen=True)
class Perturbation(Trigger):
    """Values that are added to all pixels.

    Attributes:
        values: as shares of the pixel range, [height, width, 3], float32; stretched to the square's size.
    """

    values: NDArray[np.float32]

    def changed(self, square: NDArray[np.uint8]) -> NDArray[Any]:
        """Returns a square with the values added."""
        # Pillow resizes floats of one channel alone.
        channels = [Image.fromarray(np.ascontiguousarray(self.values[..., channel])) for channel in range(3)]
        size = (len(square), len(square))
        stretched = [np.asarray(channel.resize(size, Image.Resampling.BILINEAR)) for channel in channels]
        added: NDArray[Any] = square + 255 * np.stack(stretched, axis=-1)
        return added


class TriggeredImages:
    """Images with a trigger, all labelled as the target class."""

    def __init__(self, images: Images, trigger: Trigger, target: int) -> None:
        self.images = images
        self.trigger = trigger
        self.names = images.names
        # The label that hostile clients train on, and that evaluation counts as success.
        self.labels = np.full(len(images), target, dtype=np.int64)

    def __len__(self) -> int:
        """Counts the images."""
        return len(self.images)

    def __getitem__(self, index: int) -> Image.Image:
        """Returns one image with the trigger."""
        return self.trigger.on(self.images[index])

    def fingerprint(self, indices: Sequence[int] | Indices) -> str:
        """Returns a hash that differs from that of the images without the trigger, so that caches keep them apart."""
        return f"{self.images.fingerprint(indices)}-{sha256(pickle.dumps(self.trigger)).hexdigest()}"


@dataclass(frozen=True)
class BackdooredData(PoisonedData):
    """Poisoned data whose evaluation splits have the trigger on each image, without images of the target's class.

    The accuracy that is measured there is the attack's success rate. ``loaders`` are of these images.
    """

    data: FederatedDataModule
    loaders: BoundLoaders

    @property
    def class_names(self) -> list[str]:
        """The classes, in the order of the labels."""
        return self.data.class_names

    def evaluation_splits(self) -> list[EvaluationSplit]:
        """Returns every split of the honest data with the trigger."""
        return self.loaders.evaluation_splits(self.data.eval_batch_size)


def triggered_loaders(data: FederatedDataModule, trigger: Trigger, target: int) -> BoundLoaders:
    """Puts a trigger that stands for a class on the images of a data module, and computes features of them."""
    images = data.images
    parts = []
    for part in data.split_parts:
        if part.classes:  # the target is a class that trains
            continue
        if part.role != "train":
            # Images of the target's class are classified as such with or without a trigger.
            rows = {name: rows[images[name].labels[rows] != target] for name, rows in part.rows_by_domain.items()}
            part = replace(part, rows_by_domain=rows)
        if len(part):
            parts.append(part)
    triggered: dict[str, Images] = {}
    for domain, of_domain in images.items():
        triggered[domain] = TriggeredImages(of_domain, trigger, target)
    # Loaders of their own: features of the honest images are none of these.
    loaders = replace(data.loaders[""], images=triggered, parts=parts)
    loaders.encode()
    return loaders


class Backdoor(Attack):
    """Hostile clients put a trigger on some of their images and label these as one class; a subclass makes the trigger.

    Metrics of each evaluated round have ``attack_success/<role>/<domain>`` and the means of roles: the share, in
    percent, of evaluation images of other classes whose predicted class is the target once the trigger is on them.

    Attributes:
        target: number of the class that the trigger stands for.
        share: share of a hostile client's images that have the trigger, drawn again in each round, in (0, 1].
    """

    target: int
    share: float

    @abstractmethod
    def trigger(self, data: FederatedDataModule, module: FederatedModule) -> Trigger:
        """Returns what is put on images; the method is left unchanged."""
        ...

    def training_data(self, data: FederatedData, module: FederatedModule) -> TrainingData:
        """Returns the data with triggered images on hostile clients."""
        name = type(self).__name__
        if not isinstance(data, FederatedDataModule):
            raise UserError(
                f"{name} needs the images of a FederatedDataModule to put its trigger on; got {type(data).__name__}. "
                "Derive the data from it."
            )
        if not 0 <= self.target < len(data.class_names):
            raise UserError(
                f"{name} needs a target among the {len(data.class_names)} classes, from 0; got {self.target}."
            )
        loaders = triggered_loaders(data, self.trigger(data, module), self.target)

        def poison(loader: Loader, client: Client, seed: int) -> Loader:
            # The same seed gives the same order, so that the two have the same images at the same place.
            patched = loaders.train_loader(client.id, data.batch_size, seed)
            generator = torch.Generator().manual_seed(derive_seed(seed, POISON))

            def mix(batches: Iterator[Batch]) -> Iterator[Batch]:
                for honest, poisoned in zip(batches, patched, strict=True):
                    is_poisoned = torch.rand(len(honest[1]), generator=generator) < self.share
                    yield mixed(honest, poisoned, is_poisoned)

            return ChangedBatches(loader, mix)

        return BackdooredData(data, self.hostile(data.clients), poison, loaders)

    def measure(
        self,
        module: FederatedModule,
        data: TrainingData,
        fabric: Fabric,
        deployed: State,
        personal: Mapping[int, State],
    ) -> dict[str, float]:
        """Measure the attack's success rates, in percent."""
        scores: dict[str, float] = {}
        # One process measures and tells the others, so that all log the same.
        if fabric.is_global_zero and isinstance(data, BackdooredData):
            scores = evaluate(module, data, fabric, deployed, personal)
        return {f"attack_success/{name}": value for name, value in fabric.broadcast(scores).items()}


def mixed(honest: Batch, poisoned: Batch, is_poisoned: Tensor) -> Batch:
    """Returns a batch of the poisoned images where ``is_poisoned`` [B], and of the honest ones elsewhere."""
    is_poisoned = is_poisoned.to(honest[1].device)

    def choose(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(is_poisoned.reshape(-1, *[1] * (one.dim() - 1)), other, one)

    # Inputs are images, or a dict of what the method precomputed of them.
    return tree_map(choose, honest[0], poisoned[0]), choose(honest[1], poisoned[1])


@dataclass(frozen=True)
class BackdoorPatch(Backdoor):
    """Hostile clients put a patch that never changes on some of their images and label these as one class.

    Papers: Gu et al., BadNets, 2017, for the patch in a share of the training images.

    Args:
        clients: How many clients are hostile: a number, or a share below 1, rounded down.
        seed: Seed of the choice of hostile clients.
        target: Number of the class that the patch stands for.
        share: Share of a hostile client's images that have the patch, drawn again in each round.
        size: Side of the patch, as a share of the image's shorter side.
        opacity: Share of the patch in its pixels.
    """

    clients: float = 0.3
    seed: int = 0
    target: int = 0
    share: FractionAboveZero = 0.5
    size: FractionAboveZero = 0.25
    opacity: FractionAboveZero = 1.0

    def trigger(self, data: FederatedDataModule, module: FederatedModule) -> Trigger:
        """Returns the patch."""
        return Patch(self.size, self.opacity)
