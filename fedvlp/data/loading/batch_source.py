"""Batches of the parts of a split, in the form in which a bound module wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np

from fedvlp.core.roles import MeasuredRole
from fedvlp.core.state import Client
from fedvlp.data.files.images import Images, Indices
from fedvlp.data.loading.loaders import ImageDataset, ImageLoader, image_loader
from fedvlp.data.loading.module_binding import BatchLoader, ModuleBinding, RowSelection
from fedvlp.data.split_rule import Role
from fedvlp.data.splits import SplitPart

MIN_FRACTION_OF_DOMAIN = 0.25
"""Of a domain of which fewer images are used, those alone are prepared."""


@dataclass(frozen=True)
class EvaluationSplit:
    """Images of one domain on which accuracy is measured.

    Attributes:
        name: ``<role>/<domain>``.
        role: validation and test images belong to a source domain, held-out images to one that nobody trains on.
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
        """Returns the images of some parts, one after another."""
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
        """Returns the rows of a domain that are ever used as they are: all, but for training images that change."""
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
    places = np.full(images.labels.max() + 1, -1)
    known = [label for label in classes if label < len(places)]
    places[known] = np.arange(len(known))
    seen = copy(images)
    seen.labels = places[images.labels]
    return seen
