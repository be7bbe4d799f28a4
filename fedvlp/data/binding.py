"""Images in the form in which one module wants them: pixels, or what its frozen parts computed from them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedvlp.core.roles import MeasuredRole
from fedvlp.core.state import Client
from fedvlp.data.cache import (
    DecodedImages,
    Features,
    FixedSteps,
    cache_key,
    fixed_steps,
    keep_decoded,
    load_features,
    save_features,
)
from fedvlp.data.files.images import FolderImages, Images, Indices, Transform
from fedvlp.data.loaders import DeviceLoader, ImageDataset, ImageLoader, Prepare, PreparedLoader, encode, image_loader
from fedvlp.data.split_rule import Role
from fedvlp.data.splits import SplitPart
from fedvlp.utils.files import locked

BatchLoader = PreparedLoader | DeviceLoader


@dataclass(frozen=True)
class RowSelection:
    """Images of one domain that are to be batched.

    Attributes:
        domain: its name.
        images: its images.
        rows: which of them, ascending.
        prepared_rows: which of them are prepared together, ascending; ``rows`` are among them.
    """

    domain: str
    images: Images
    rows: Indices
    prepared_rows: Indices


@dataclass(frozen=True)
class ModuleBinding:
    """What a module asks of images, and what was computed for it.

    Attributes:
        transform: makes a tensor [3, V, V] of a PIL image.
        train_transform: the same with random crops and flips.
        prepare: makes tensors [B, ...] by name of images [B, 3, V, V]; None leaves them unchanged.
        key: everything but transform, images and device that ``prepare`` depends on.
        device: where batches are wanted.
        cache_dir: folder below which computed tensors are kept; None keeps them in memory alone.
        num_workers: processes that read images.
        cache_images: whether decoded images are kept there too.
        domains: the source domains, if training batches shall say which of them each image is of; else none.
        features: what ``prepare`` gave, by domain, and for which of its rows.
        decoded: images that are read from there, by domain.
    """

    transform: Transform
    train_transform: Transform | None = None
    prepare: Prepare | None = None
    key: str = ""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    cache_dir: Path | None = None
    num_workers: int = 0
    cache_images: bool = False
    domains: tuple[str, ...] = ()
    features: dict[str, tuple[Indices, Features]] = field(default_factory=dict)
    decoded: dict[str, DecodedImages] = field(default_factory=dict)

    def prepared(self, domain: str, images: Images, rows: Indices) -> dict[str, Tensor]:
        """Returns what ``prepare`` gives for these rows of a domain: from memory, from disk or computed now."""
        known = self.features.get(domain)
        if known is None or not np.array_equal(known[0], rows):
            known = (rows, self._read_or_encode(domain, images, rows))
            self.features[domain] = known
        return known[1].tensors

    def feature_counts(self) -> dict[str, float]:
        """Returns how many images were prepared, how many were found prepared, and the seconds that took or saved."""
        found = list(self.features.values())
        return {
            "computed_seconds": sum(features.seconds for _, features in found if not features.is_cached),
            "saved_seconds": sum(features.seconds for _, features in found if features.is_cached),
            "computed_images": sum(len(rows) for rows, features in found if not features.is_cached),
            "cached_images": sum(len(rows) for rows, features in found if features.is_cached),
        }

    def _read_or_encode(self, domain: str, images: Images, rows: Indices) -> Features:
        """Reads the tensors of a domain from the cache, or computes them and writes them there."""
        if self.cache_dir is None:
            return self._encode(domain, images, rows)
        name = cache_key(self.key, self.transform, images, rows, self.device)
        path = self.cache_dir / "features" / f"{name}.safetensors"
        # Processes that start together encode a domain once: the others wait and read the file.
        with locked(path):
            known = load_features(path, len(rows), self.device)
            if known is not None:
                return known
            features = self._encode(domain, images, rows)
            save_features(path, features)
            if self.device.type != "cpu":
                return features
            # Read again, so that the tensors are mapped from the file and do not fill the memory.
            mapped = load_features(path, len(rows), self.device)
            return features if mapped is None else replace(features, tensors=mapped.tensors)

    def _encode(self, domain: str, images: Images, rows: Indices) -> Features:
        if self.prepare is None:
            raise RuntimeError("There is no `prepare` to compute anything with; give one to bind().")
        dataset = self.dataset([RowSelection(domain, images, rows, rows)])
        began = time.perf_counter()
        tensors = encode(dataset, self.prepare, self.device, self.num_workers, f"encoding {domain}")
        for tensor in tensors.values():
            tensor[-1:].cpu()  # waits until the device is done
        return Features(tensors, time.perf_counter() - began)

    def prepared_loader(
        self, selections: Sequence[RowSelection], batch_size: int, seed: int | None = None
    ) -> PreparedLoader:
        """Returns batches of prepared tensors for rows of one domain or several.

        Args:
            selections: what to take of each domain.
            batch_size: images in a batch.
            seed: of the order, for training; None keeps that of ``selections``, for measuring.
        """

        def tensors() -> list[dict[str, Tensor]]:
            return [self.prepared(each.domain, each.images, each.prepared_rows) for each in selections]

        # The prepared tensors have a row for each of `prepared_rows`, which need not be all of a domain.
        places = [np.searchsorted(each.prepared_rows, each.rows) for each in selections]
        rows = [torch.from_numpy(place).to(self.device) for place in places]
        labels = np.concatenate([each.images.labels[each.rows] for each in selections])
        places_of_domains = None if seed is None else self._places_of_domains(selections)
        return PreparedLoader(
            tensors, rows, torch.from_numpy(labels).to(self.device), batch_size, seed, places_of_domains
        )

    def image_loader(
        self, selections: Sequence[RowSelection], batch_size: int, seed: int | None = None, is_augmented: bool = False
    ) -> DeviceLoader:
        """Returns batches of images for rows of one domain or several, in their order or shuffled by ``seed``."""
        dataset = self.dataset(selections, is_augmented, is_training=seed is not None)
        return DeviceLoader(image_loader(dataset, batch_size, self.num_workers, seed, self.device), self.device)

    def dataset(
        self, selections: Sequence[RowSelection], is_augmented: bool = False, is_training: bool = False
    ) -> ImageDataset:
        """Returns the images of rows of one domain or several, read from the cache of decoded images where they can."""
        places = self._places_of_domains(selections) if is_training else None
        decoded = [self._decoded(each.domain, each.images) for each in selections]
        rows = [each.rows for each in selections]
        if self._steps is not None and not is_augmented and all(images is not None for images in decoded):
            found = [images for images in decoded if images is not None]
            return ImageDataset(list(zip(found, rows, strict=True)), self._steps.rest, places)
        transform = self.train_transform if is_augmented and self.train_transform else self.transform
        return ImageDataset([(each.images, each.rows) for each in selections], transform, places)

    def _places_of_domains(self, selections: Sequence[RowSelection]) -> list[int] | None:
        """Returns the place of each selection's domain among the source domains; None if the module does not ask."""
        return [self.domains.index(each.domain) for each in selections] if self.domains else None

    def keep_decoded(self, selections: Sequence[RowSelection]) -> None:
        """Decodes images that will be read many times, once and for all."""
        wanted = []
        for each in selections:
            decoded = self._decoded(each.domain, each.images)
            if decoded is not None:
                wanted.append((each.domain, decoded, each.rows))
        keep_decoded(wanted, self.num_workers)

    @cached_property
    def _steps(self) -> FixedSteps | None:
        """The part of the transform after which images are kept; None if they are not."""
        return fixed_steps(self.transform) if self.cache_images and self.cache_dir is not None else None

    def _decoded(self, domain: str, images: Images) -> DecodedImages | None:
        """Returns the cache of a domain's decoded images; None if they are not kept."""
        if self._steps is None or self.cache_dir is None or not isinstance(images, FolderImages):
            return None
        if domain not in self.decoded:
            self.decoded[domain] = DecodedImages(images, self._steps, self.cache_dir / "images")
        return self.decoded[domain]


MIN_FRACTION_OF_DOMAIN = 0.25
"""Of a domain of which fewer images are used, those alone are prepared."""


@dataclass(frozen=True)
class EvaluationSplit:
    """Images of one domain on which accuracy is measured.

    Attributes:
        name: ``<role>/<domain>``.
        role: validation and test images belong to a source domain, held-out images to one that no client trains on.
        domain: name of the domain.
        clients: who trains on other images of the domain; none where held out.
        loader: batches of (inputs, labels) in a fixed order.
        num_examples: number of images.
        class_names: the classes that the images are told apart by, in the order of the labels; none where it is those
            that train.
    """

    name: str
    role: MeasuredRole
    domain: str
    clients: tuple[Client, ...]
    loader: BatchLoader
    num_examples: int
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class BatchSource:
    """Makes the loaders of a split for one bound module.

    Attributes:
        images: images by domain.
        parts: which of them play which role.
        binding: what the module asks of images.
        is_augmented: whether training images change from pass to pass, so that nothing can be prepared of them.
        class_names: names of all classes, where parts say which of them they are of.
        of_classes: what the module asks of images of such parts, by their classes.
    """

    images: Mapping[str, Images]
    parts: Sequence[SplitPart]
    binding: ModuleBinding
    is_augmented: bool
    class_names: Sequence[str] = ()
    of_classes: Mapping[tuple[int, ...], ModuleBinding] = field(default_factory=dict)

    def encode(self) -> None:
        """Computes, or reads from the cache, all that ``prepare`` gives; without it, decodes images for the cache.

        Images that change from pass to pass begin with the whole file each time.
        """
        if self.binding.prepare is None:
            self._keep_decoded()
            return
        for binding in (self.binding, *self.of_classes.values()):
            for domain, images in self.images.items():
                rows = self._prepared_rows(domain, binding)
                if len(rows):
                    binding.prepared(domain, images, rows)

    def _keep_decoded(self) -> None:
        selections = []
        for domain, images in self.images.items():
            rows = self._fixed_rows(domain, self.parts)
            selections.append(RowSelection(domain, images, rows, rows))
        self.binding.keep_decoded(selections)

    def train_loader(self, client_id: int, batch_size: int, seed: int) -> BatchLoader:
        """Returns a client's shuffled batches: prepared where it can be, images where they change from pass to pass."""
        part = self._of_role("train")[client_id]
        if self.is_augmented:
            return self.binding.image_loader(self._selections(part), batch_size, seed, is_augmented=True)
        return self._loader(part, batch_size, seed)

    def evaluation_splits(self, batch_size: int) -> list[EvaluationSplit]:
        """Returns every part that measures, in the order of parts."""
        return [
            EvaluationSplit(
                name=part.name,
                role=part.role,
                domain=part.name.partition("/")[2],
                clients=part.clients,
                loader=self._loader(part, batch_size),
                num_examples=len(part),
                class_names=self._names(part),
            )
            for part in self.parts
            if part.role != "train"
        ]

    def image_loaders(self, batch_size: int, *roles: Role) -> list[ImageLoader]:
        """Returns a loader of images, in order, for each part of some roles; for a plain Trainer."""
        workers = self.binding.num_workers
        return [image_loader(self._dataset([part]), batch_size, workers) for part in self._of_role(*roles)]

    def train_image_loader(self, batch_size: int, seed: int) -> ImageLoader:
        """Returns the shuffled training images of all clients together; for a plain Trainer."""
        dataset = self._dataset(self._of_role("train"), self.is_augmented, is_training=True)
        return image_loader(dataset, batch_size, self.binding.num_workers, seed)

    def _names(self, part: SplitPart) -> tuple[str, ...]:
        return tuple(self.class_names[label] for label in part.classes)

    def _of_role(self, *roles: Role) -> list[SplitPart]:
        return [part for part in self.parts if part.role in roles]

    def _dataset(
        self, parts: Sequence[SplitPart], is_augmented: bool = False, is_training: bool = False
    ) -> ImageDataset:
        """Returns the images of some parts, sequentially."""
        selections: list[RowSelection] = []
        for part in parts:
            selections += self._selections(part)
        if not is_augmented:
            self.binding.keep_decoded(selections)
        return self.binding.dataset(selections, is_augmented, is_training)

    def _prepared_rows(self, domain: str, binding: ModuleBinding) -> Indices:
        """Returns the rows of a domain to prepare: all, so that every split shares them, unless few are used."""
        # What is prepared alike is prepared together, whichever classes it is for.
        alike = [part for part in self.parts if self._binding(part).key == binding.key]
        used = self._fixed_rows(domain, alike)
        if not len(used):
            return used
        count = len(self.images[domain])
        # Whole domains are prepared, so that runs of other splits, seeds or shots find them in the cache.
        is_few = len(used) < MIN_FRACTION_OF_DOMAIN * count
        return used if self.is_augmented or is_few else np.arange(count)

    def _fixed_rows(self, domain: str, parts: Sequence[SplitPart]) -> Indices:
        """Returns the rows of a domain that are ever used unchanged: all, but for training images that change."""
        used: list[Indices] = []
        for part in parts:
            # Augmented images are new in every pass, so nothing that was computed of them could be used again.
            is_changed = part.role == "train" and self.is_augmented
            if domain in part.rows_by_domain and not is_changed:
                used.append(part.rows_by_domain[domain])
        return np.sort(np.concatenate(used)) if used else np.empty(0, np.int64)

    def _loader(self, part: SplitPart, batch_size: int, seed: int | None = None) -> BatchLoader:
        binding = self._binding(part)
        if binding.prepare is None:
            return binding.image_loader(self._selections(part), batch_size, seed)
        return binding.prepared_loader(self._selections(part), batch_size, seed)

    def _binding(self, part: SplitPart) -> ModuleBinding:
        return self.of_classes.get(part.classes, self.binding)

    def _selections(self, part: SplitPart) -> list[RowSelection]:
        binding = self._binding(part)
        return [
            RowSelection(
                domain, _seen_as(self.images[domain], part.classes), rows, self._prepared_rows(domain, binding)
            )
            for domain, rows in part.rows_by_domain.items()
        ]


def _seen_as(images: Images, classes: Sequence[int]) -> Images:
    """Returns images whose labels are the places of their classes among some; -1 for other classes."""
    if not classes:
        return images
    # Labels of a part that has only some classes count these alone, as the classifier of the part does.
    places = np.full(images.labels.max() + 1, -1)
    known = [label for label in classes if label < len(places)]
    places[known] = np.arange(len(known))
    seen = copy(images)
    seen.labels = places[images.labels]
    return seen
