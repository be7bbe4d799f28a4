"""Batches for one module: images, or features from its frozen parts.

Orders and augmentations are drawn in the main process, so batches are the same for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from lightning.fabric.utilities import move_data_to_device
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from tqdm import tqdm

from fedvlp.core.protocols import DOMAIN, Batch, Inputs, Loader, Precompute
from fedvlp.core.protocols import EvaluationSplit as EvaluationSplit  # part of the public API of `fedvlp.data`
from fedvlp.data.cache import DecodedImages, cache_key, cached_features, fixed_steps
from fedvlp.data.files.images import FolderImages, Images, Indices, Transform, with_intensity
from fedvlp.data.splits import Names, SplitPart

ImageLoader = DataLoader[tuple[Any, int]]
"""Batches of (pixels, labels) on the CPU; a dict may contain the pixels."""
Selection = tuple[Images | DecodedImages, Indices]
"""Images of a domain and the rows to select."""


@dataclass
class BoundLoaders:
    """Makes the loaders of one data set for one bound module.

    ``FederatedDataModule.bind`` explains the other attributes.

    Attributes:
        images: Images by domain.
        parts: The parts of the split.
        domains: The source domains, if training batches contain each image's domain; otherwise empty.
        class_names: Names of all classes.
        targets: Targets [classes, labels] of each class, if classes are sets of labels; otherwise None.
        groups: Group of each image by domain, "" for none; empty if no image has one.
    """

    images: Mapping[str, Images]
    parts: Sequence[SplitPart]
    transform: Transform
    train_transform: Transform | None = None
    precompute: Precompute | None = None
    key: str = ""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    domains: Sequence[str] = ()
    num_workers: int = 0
    cache_dir: Path | None = None
    cache_images: bool = False
    class_names: Sequence[str] = ()
    targets: NDArray[np.float32] | None = None
    groups: Mapping[str, Names] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.images = {domain: with_intensity(images, self.transform) for domain, images in self.images.items()}
        self.train_parts = [part for part in self.parts if part.role == "train"]
        self.features: dict[str, dict[str, Tensor]] = {}  # by domain
        self.rows: dict[str, Indices] = {}
        self._decoded: dict[str, DecodedImages] = {}

    def encode(self) -> None:
        """Compute the per-image constants or read them from the cache; if there are none, cache decoded images."""
        if self.precompute is None:
            self._cache_decoded(self.images)
            return
        for domain in self.images:
            if len(self._rows_to_cache(domain)):
                self._tensors(domain, self.precompute)

    def train_loader(self, client_id: int, batch_size: int, seed: int, balanced: bool = False) -> Loader:
        """Make a client's batches, shuffled by a seed, or drawn with balanced classes."""
        return self._loader(self.train_parts[client_id], batch_size, seed, balanced)

    def evaluation_splits(self, batch_size: int) -> list[EvaluationSplit]:
        """List every measured part, in the order of the parts."""
        splits = []
        for part in self.parts:
            if part.role != "train":
                loader = self._loader(part, batch_size)
                names = tuple(self.class_names[label] for label in part.classes)
                about = (part.name, part.role, part.owner, part.clients)
                splits.append(EvaluationSplit(*about, loader, len(part), names, self._group_numbers(part)))
        return splits

    def _group_numbers(self, part: SplitPart) -> NDArray[np.int32] | None:
        if not self.groups:
            return None
        names = chain.from_iterable(self.groups[domain][rows] for domain, rows in part.rows_by_domain.items())
        # An image without a group is its own group.
        keys = [name or f"\0{position}" for position, name in enumerate(names)]
        return np.unique(keys, return_inverse=True)[1].astype(np.int32)

    def image_loader(
        self, parts: Sequence[SplitPart], batch_size: int, seed: int | None = None, balanced: bool = False
    ) -> ImageLoader:
        """Load the images of parts on the CPU for a plain Trainer: in order, or as training batches with a seed."""
        selected = list(chain.from_iterable(part.rows_by_domain.items() for part in parts))
        is_augmented = self.train_transform is not None and seed is not None
        if not is_augmented:
            self._cache_decoded(dict(selected))
        dataset = self._dataset(selected, is_augmented, () if seed is None else self.domains)
        shuffle = None if seed is None else Shuffle(dataset.labels, seed, balanced)
        return image_loader(dataset, batch_size, self.num_workers, shuffle)

    def _loader(self, part: SplitPart, batch_size: int, seed: int | None = None, balanced: bool = False) -> Loader:
        """Make a part's batches: in order, or shuffled by a seed, with ``balanced`` classes if requested."""
        precompute = self.precompute
        selected = list(part.rows_by_domain.items())
        is_augmented = self.train_transform is not None and part.role == "train"
        dataset = self._dataset(selected, is_augmented, () if seed is None else self.domains, part.classes)
        shuffle = None if seed is None else Shuffle(dataset.labels, seed, balanced)
        if precompute is None or is_augmented:
            return DeviceLoader(image_loader(dataset, batch_size, self.num_workers, shuffle, self.device), self.device)
        # The tensors have a row for each encoded image, but not all images of a domain need be encoded.
        rows = np.concatenate([np.searchsorted(self._rows_to_cache(domain), rows) for domain, rows in selected])

        def compute() -> list[dict[str, Tensor]]:
            return [self._tensors(domain, precompute) for domain, _ in selected]

        return PrecomputedLoader(dataset, compute, rows, batch_size, shuffle, self.device)

    def _dataset(
        self,
        selected: Sequence[tuple[str, Indices]],
        is_augmented: bool = False,
        domains: Sequence[str] = (),
        classes: Sequence[int] = (),
    ) -> ImageDataset:
        transform = self.train_transform if is_augmented and self.train_transform is not None else self.transform
        images: list[Selection] = [(self.images[domain], rows) for domain, rows in selected]
        if self._steps is not None and not is_augmented and all(domain in self._decoded for domain, _ in selected):
            decoded = [(self._decoded[domain], rows) for domain, rows in selected]
            images = [(cached, np.searchsorted(cached.rows, rows)) for cached, rows in decoded]
            transform = self._steps[1]  # decoded images need only the remaining steps
        numbers = [domains.index(domain) for domain, _ in selected] if domains else None
        return ImageDataset(images, transform, numbers, classes, self.targets)

    @cached_property
    def _steps(self) -> tuple[Any, Transform] | None:
        """The transform's steps before and after caching images; None if images are not cached."""
        return fixed_steps(self.transform) if self.cache_images and self.cache_dir is not None else None

    def _cache_decoded(self, domains: Iterable[str]) -> None:
        if self._steps is None or self.cache_dir is None:
            return
        for domain in domains:
            images = self.images[domain]
            rows = self._rows_to_cache(domain)
            # Images in memory are faster than any cache.
            if domain not in self._decoded and len(rows) and isinstance(images, FolderImages):
                decoded = DecodedImages(images, rows, self._steps[0], self.cache_dir / "images")
                if decoded.make(f"decoding {domain}"):
                    self._decoded[domain] = decoded

    def _tensors(self, domain: str, precompute: Precompute) -> dict[str, Tensor]:
        if domain in self.features:
            return self.features[domain]
        rows = self._rows_to_cache(domain)

        def compute() -> dict[str, Tensor]:
            dataset = self._dataset([(domain, rows)])
            return encode(dataset, precompute, self.device, self.num_workers, f"encoding {domain}")

        if self.cache_dir is None:
            self.features[domain] = compute()
        else:
            name = cache_key(self.key, self.transform, self.images[domain], rows, self.device)
            path = self.cache_dir / "features" / f"{name}.safetensors"
            self.features[domain] = cached_features(path, self.device, compute)
        return self.features[domain]

    def _rows_to_cache(self, domain: str) -> Indices:
        """Collect the rows of a domain that any part uses; they are computed together."""
        if domain not in self.rows:
            # Augmented training images change in every pass, so they are never cached.
            is_augmented = self.train_transform is not None
            parts = [part for part in self.parts if not (is_augmented and part.role == "train")]
            used = [part.rows_by_domain[domain] for part in parts if domain in part.rows_by_domain]
            # Unique rows, since the parts of a client and of its domain may share images.
            self.rows[domain] = np.unique(np.concatenate([np.empty(0, np.int64), *used]))
        return self.rows[domain]


class Shuffle(Sampler[tuple[int, int]]):
    """Random order of the images with some labels, and a seed for each image's augmentation, drawn for every pass.

    If ``balanced``, as many images are drawn with replacement, and each class that has images is equally likely. The
    draws depend only on ``seed``. The global generator is neither read nor advanced.
    """

    def __init__(self, labels: Indices, seed: int, balanced: bool = False) -> None:
        self.count = len(labels)
        self.generator = torch.Generator().manual_seed(seed)
        self.weights = 1 / torch.from_numpy(np.bincount(labels)[labels]).double() if balanced else None

    def draw(self) -> tuple[Int[Tensor, " images"], Int[Tensor, " images"]]:
        """Draw the order of the next pass, and the seed of the image at each position."""
        # Both are always drawn, so that passes over images and precomputed tensors have the same orders.
        if self.weights is None:
            order = torch.randperm(self.count, generator=self.generator)
        else:
            order = torch.multinomial(self.weights, self.count, replacement=True, generator=self.generator)
        return order, torch.randint(2**62, (self.count,), generator=self.generator)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order, seeds = self.draw()
        return iter(list(zip(order.tolist(), seeds[order].tolist(), strict=True)))


class ImageDataset(Dataset[tuple[Any, Any]]):
    """Transformed images with their labels.

    Args:
        selected: Images and rows of each domain.
        transform: Turns an image into a tensor [3, V, V].
        domains: Index of each selection's domain; items are then dicts of ``images`` and ``domain``.
        classes: The ascending classes of the labels, which are then renumbered from 0; empty for all classes.
        targets: Targets of each class, [classes, labels], if an item has these instead of the class.
    """

    def __init__(
        self,
        selected: Sequence[Selection],
        transform: Transform,
        domains: Sequence[int] | None = None,
        classes: Sequence[int] = (),
        targets: NDArray[np.float32] | None = None,
    ) -> None:
        self.images = [images for images, _ in selected]
        self.domain = np.repeat(np.arange(len(selected)), [len(rows) for _, rows in selected])
        self.row = np.concatenate([rows for _, rows in selected])
        labels = np.concatenate([images.labels[rows] for images, rows in selected])
        self.labels: Indices = np.searchsorted(classes, labels) if classes else labels
        self.targets: NDArray[Any] = self.labels if targets is None else targets[self.labels]
        self.transform = transform
        self.domains = domains

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, item: int | tuple[int, int]) -> tuple[Any, Any]:
        """Load pixels and label, or targets; given (position, seed), a random transform draws only from that seed."""
        position, seed = item if isinstance(item, tuple) else (item, None)
        image = self.images[self.domain[position]][int(self.row[position])]
        label = self.targets[position] if self.targets.ndim == 2 else int(self.targets[position])
        # Transforms draw from their process's global generator, so its state is restored.
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.default_generator.manual_seed(seed)
            pixels = self.transform(image)
        if self.domains is None:
            return pixels, label
        return {"images": pixels, DOMAIN: self.domains[self.domain[position]]}, label


def image_loader(
    dataset: ImageDataset,
    batch_size: int,
    num_workers: int = 0,
    shuffle: Shuffle | None = None,
    device: torch.device | None = None,
) -> ImageLoader:
    """Make a PyTorch loader of (pixels, labels), in order unless ``shuffle`` draws another.

    Batches for a CUDA ``device`` use pinned memory, so that copying overlaps with computing.
    """
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=shuffle,
        num_workers=num_workers,
        pin_memory=device is not None and device.type == "cuda",
        # Without this, each pass would draw its workers' seed from the global generator.
        generator=torch.Generator().manual_seed(0),
    )


@dataclass(frozen=True)
class DeviceLoader:
    """Moves the batches of a loader to a device."""

    loader: ImageLoader
    device: torch.device

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            yield move_data_to_device(batch, self.device)


class PrecomputedLoader:
    """Batches cut from the tensors of domains; nothing is read, decoded or encoded.

    Args:
        dataset: The images, whose labels (or targets) and domains the batches contain.
        tensors: Computes the tensors of each of the images' domains, by name; called for the first batch.
        rows: Row of each image in its domain's tensors.
        batch_size: Rows in a batch; the last may be smaller.
        shuffle: Draws the order; None keeps the order of the images.
        device: The device of the tensors.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        tensors: Callable[[], Sequence[dict[str, Tensor]]],
        rows: Indices,
        batch_size: int,
        shuffle: Shuffle | None,
        device: torch.device,
    ) -> None:
        self.tensors = tensors
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.rows, self.domain, self.labels = (
            torch.from_numpy(values).to(device) for values in (rows, dataset.domain, dataset.targets)
        )
        self.number = None if dataset.domains is None else torch.tensor(dataset.domains, device=device)[self.domain]

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Iterate over tensors [B, ...] by name and labels [B], on the device of the tensors."""
        tensors = self.tensors()
        order = torch.arange(len(self.rows)) if self.shuffle is None else self.shuffle.draw()[0]
        for positions in torch.split(order.to(self.rows.device), self.batch_size):
            batch = self._gather(tensors, positions)
            if self.number is not None:
                batch[DOMAIN] = self.number[positions]
            yield batch, self.labels[positions]

    def _gather(self, tensors: Sequence[dict[str, Tensor]], positions: Int[Tensor, " B"]) -> dict[str, Tensor]:
        rows = self.rows[positions]
        if len(tensors) == 1:
            return {name: tensor[rows] for name, tensor in tensors[0].items()}
        domain = self.domain[positions]
        batch = {name: tensor.new_empty(len(rows), *tensor.shape[1:]) for name, tensor in tensors[0].items()}
        # Concatenating the domains would read all their files into memory.
        for index, domain_tensors in enumerate(tensors):
            in_domain = domain == index
            for name, tensor in domain_tensors.items():
                batch[name][in_domain] = tensor[rows[in_domain]]
        return batch


def encode(
    dataset: ImageDataset, precompute: Precompute, device: torch.device, num_workers: int, description: str = "encoding"
) -> dict[str, Tensor]:
    """Compute the constants of these images, [images, ...] by name, on ``device``.

    Batches have a fixed size, so the values do not depend on the batches of clients or evaluations. Raises ValueError
    if ``precompute`` does not return one row per image.
    """
    encoded: dict[str, Tensor] = {}
    start = 0
    batches = image_loader(dataset, 64, num_workers, device=device)
    bar = tqdm(total=len(dataset), desc=description, unit="image", leave=False, disable=None)
    # Tensors made in inference mode could not be used in training.
    with bar, torch.inference_mode(False), torch.no_grad():
        for pixels, _ in batches:
            count = len(pixels)
            for name, value in precompute(pixels.to(device, non_blocking=device.type == "cuda")).items():
                if len(value) != count:
                    raise ValueError(f"Expected `precompute` to give {count} rows of {name!r}; got {len(value)}.")
                if name not in encoded:
                    encoded[name] = torch.empty(len(dataset), *value.shape[1:], dtype=value.dtype, device=device)
                encoded[name][start : start + count] = value
            start += count
            bar.update(count)
    return encoded
