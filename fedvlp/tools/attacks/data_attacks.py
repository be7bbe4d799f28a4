"""Attacks on training data: hostile clients train on wrong labels, or on images with a backdoor trigger."""

import pickle
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
"""Separates the choice of poisoned images from other random numbers of a client's seed."""
SQUARES = 4
"""Rows and columns of the patch's chequered squares."""


@dataclass(frozen=True)
class ChangedBatches:
    """Batches that are changed in each pass."""

    loader: Loader
    change: Callable[[Iterator[Batch]], Iterator[Batch]]

    def __len__(self) -> int:
        """Count the batches."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        """Iterate once over the changed batches."""
        return self.change(iter(self.loader))


@dataclass(frozen=True)
class PoisonedData:
    """Data in which ``hostile`` clients train on poisoned batches; ``poison`` maps batches, client and seed to them."""

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

    def train_dataloader(self, client: Client | None = None, seed: int | None = None, once: bool = False) -> Loader:
        """Build one client's batches, poisoned if it is hostile; lightning.Trainer passes no client."""
        loader = self.data.train_dataloader(client, seed=seed, once=once)
        if client is None or seed is None or client.id not in self.hostile:
            return loader
        return self.poison(loader, client, seed)


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Hostile clients train on wrong labels, C - 1 - c for class c of C (Fang et al., USENIX Security 2020).

    Labels of evaluation images are not flipped.

    Args:
        clients: How many clients are hostile: a number, or a share below 1, rounded down.
        seed: Seed of the choice of hostile clients.
    """

    clients: float = 0.3
    seed: int = 0
    needs_classes = True

    def training_data(self, data: FederatedData, module: FederatedModule) -> TrainingData:
        """Flip the labels in the batches of hostile clients."""
        highest = len(data.class_names) - 1

        def flip(batches: Iterator[Batch]) -> Iterator[Batch]:
            for inputs, labels in batches:
                yield inputs, highest - labels

        return PoisonedData(data, self.hostile(data.clients), lambda loader, *_: ChangedBatches(loader, flip))


Trigger = Callable[[NDArray[np.uint8]], NDArray[Any]]
"""Computes the pixels of a square [side, side, 3] with the trigger, before rounding and clipping to [0, 255]."""


def apply_trigger(image: Image.Image, trigger: Trigger) -> Image.Image:
    """Return a copy of an image with the trigger in its largest centred square, which CLIP's transform crops."""
    pixels = np.array(image.convert("RGB"))
    height, width = pixels.shape[:2]
    side = min(height, width)
    top = (height + side) // 2 - side
    left = (width + side) // 2 - side
    changed = trigger(pixels[top : top + side, left : left + side])
    pixels[top : top + side, left : left + side] = np.rint(changed).clip(0, 255).astype(np.uint8)
    return Image.fromarray(pixels)


def add_patch(square: NDArray[np.uint8], size: float, opacity: float) -> NDArray[Any]:
    """Blend chequered black and white squares into the lower right corner of a square.

    ``size`` is the side of the patch as a share of the square's side, and ``opacity`` its opacity; both in (0, 1].
    """
    side = max(1, round(size * len(square)))
    squares = np.arange(side) * SQUARES // side
    white = (squares[:, None] + squares[None, :]) % 2 * 255
    blended = square.astype(np.float64)
    blended[-side:, -side:] = (1 - opacity) * blended[-side:, -side:] + opacity * white[..., None]
    return blended


def add_perturbation(square: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[Any]:
    """Add values [height, width, 3], as shares of the pixel range and resized to the square's size, to a square."""
    # Pillow resizes float images only with one channel.
    channels = [Image.fromarray(np.ascontiguousarray(values[..., channel])) for channel in range(3)]
    size = (len(square), len(square))
    stretched = [np.asarray(channel.resize(size, Image.Resampling.BILINEAR)) for channel in channels]
    return square + 255 * np.stack(stretched, axis=-1)


class TriggeredImages:
    """Images with a trigger, all labelled as the target class."""

    def __init__(self, images: Images, trigger: Trigger, target: int) -> None:
        self.images = images
        self.trigger = trigger
        self.names = images.names
        self.labels = np.full(len(images), target, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Image.Image:
        return apply_trigger(self.images[index], self.trigger)

    def fingerprint(self, indices: Sequence[int] | Indices) -> str:
        """Hash the images and the trigger, so that caches distinguish them from the honest images."""
        return f"{self.images.fingerprint(indices)}-{sha256(pickle.dumps(self.trigger)).hexdigest()}"


@dataclass(frozen=True)
class BackdooredData(PoisonedData):
    """Poisoned data with evaluation splits that measure the attack's success rate.

    ``loaders`` serve all images with the trigger, except evaluation images of the target class.
    """

    data: FederatedDataModule
    loaders: BoundLoaders

    @property
    def class_names(self) -> list[str]:
        """Class names, in the order of the labels."""
        return self.data.class_names

    def evaluation_splits(self) -> list[EvaluationSplit]:
        """List all splits of the honest data, with the trigger in their images."""
        return self.loaders.evaluation_splits(self.data.eval_batch_size)


def triggered_loaders(data: FederatedDataModule, trigger: Trigger, target: int) -> BoundLoaders:
    """Apply the trigger of a class to a data module's images, and compute their features."""
    images = data.images
    parts = []
    for part in data.split_parts:
        if part.classes:  # the target is a training class
            continue
        if part.role != "train":
            rows = {name: rows[images[name].labels[rows] != target] for name, rows in part.rows_by_domain.items()}
            part = replace(part, rows_by_domain=rows)
        if len(part):
            parts.append(part)
    triggered: dict[str, Images] = {name: TriggeredImages(part, trigger, target) for name, part in images.items()}
    loaders = replace(data.loaders[""], images=triggered, parts=parts)
    loaders.encode()
    return loaders


@dataclass(frozen=True)
class Backdoor(Attack):
    """Hostile clients apply a trigger, defined by subclasses, to some of their images and label these as one class.

    Each evaluated round reports ``attack_success/<role>/<domain>`` and the means of roles: the percentage of evaluation
    images of other classes that the method classifies as the target once they have the trigger.

    Args:
        clients: How many clients are hostile: a number, or a share below 1, rounded down.
        seed: Seed of the choice of hostile clients.
        target: Index of the trigger's target class.
        share: Share of a hostile client's images with the trigger, sampled again in each round.
    """

    clients: float = 0.3
    seed: int = 0
    target: int = 0
    share: FractionAboveZero = 0.5
    needs_classes = True

    @abstractmethod
    def trigger(self, data: FederatedDataModule, module: FederatedModule) -> Trigger:
        """Make the trigger, and leave the method unchanged."""
        ...

    def training_data(self, data: FederatedData, module: FederatedModule) -> TrainingData:
        """Put the trigger on images of hostile clients."""
        name = type(self).__name__
        if not isinstance(data, FederatedDataModule):
            raise UserError(
                f"{name} needs a FederatedDataModule, to apply its trigger to images; got {type(data).__name__}. "
                "Derive the data from FederatedDataModule."
            )
        if not 0 <= self.target < len(data.class_names):
            raise UserError(
                f"{name}.target must be from 0 to {len(data.class_names) - 1}, an index of a class; got {self.target}."
            )
        loaders = triggered_loaders(data, self.trigger(data, module), self.target)

        def poison(loader: Loader, client: Client, seed: int) -> Loader:
            # The same seed gives the same order of images in both loaders.
            patched = loaders.train_loader(client.id, data.batch_size, seed)
            generator = torch.Generator().manual_seed(derive_seed(seed, POISON))

            def mix(batches: Iterator[Batch]) -> Iterator[Batch]:
                for honest, poisoned in zip(batches, patched, strict=True):
                    is_poisoned = torch.rand(len(honest[1]), generator=generator) < self.share
                    yield mix_batches(honest, poisoned, is_poisoned)

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
        if fabric.is_global_zero and isinstance(data, BackdooredData):
            scores = evaluate(module, data, fabric, deployed, personal)
        return {f"attack_success/{name}": value for name, value in fabric.broadcast(scores).items()}


def mix_batches(honest: Batch, poisoned: Batch, is_poisoned: Tensor) -> Batch:
    """Choose poisoned images where ``is_poisoned`` [B] is true, and honest images elsewhere."""
    is_poisoned = is_poisoned.to(honest[1].device)

    def choose(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(is_poisoned.reshape(-1, *[1] * (one.dim() - 1)), other, one)

    # Inputs are images, or a dict of precomputed tensors.
    return tree_map(choose, honest[0], poisoned[0]), choose(honest[1], poisoned[1])


@dataclass(frozen=True)
class BackdoorPatch(Backdoor):
    """Hostile clients add a constant patch to some of their images and label these as one class.

    Papers: Gu et al., BadNets, 2017, for the patch in a share of the training images.

    Args:
        size: Side of the patch, as a share of the image's shorter side.
        opacity: Opacity of the patch.
    """

    size: FractionAboveZero = 0.25
    opacity: FractionAboveZero = 1.0

    def trigger(self, data: FederatedDataModule, module: FederatedModule) -> Trigger:
        """Create the patch."""
        return partial(add_patch, size=self.size, opacity=self.opacity)
