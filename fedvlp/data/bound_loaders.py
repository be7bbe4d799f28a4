"""The loaders of a bound data module: its own splits, other data sets, and images of other things than the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedvlp.core.roles import OUT_OF_DISTRIBUTION
from fedvlp.data.binding import BatchSource, EvaluationSplit, ModuleBinding
from fedvlp.data.files.images import (
    FolderImages,
    Images,
    bad_images_message,
    check_utf8,
    identity,
    image_paths,
    unreadable,
)
from fedvlp.data.loaders import Prepare
from fedvlp.data.splits import SplitPart, image_hash, split_hash
from fedvlp.utils.errors import UserError

NO_CLASS = -1
"""The label of all of them."""


@dataclass(frozen=True)
class OutOfDistribution:
    """The images of a folder, at any depth.

    Attributes:
        folder: where they are.
    """

    folder: str

    @property
    def name(self) -> str:
        """The folder's own name."""
        return Path(self.folder).expanduser().resolve().name

    @cached_property
    def images(self) -> FolderImages:
        """The images, each of which was opened once.

        Raises:
            UserError: if there is no such folder, no image in it, or one that can't be read.
        """
        root = Path(self.folder).expanduser()
        if not root.is_dir():
            raise UserError(f"Expected a folder of images at {root}; there is none. Check data.out_of_distribution.")
        paths = image_paths([self.folder])
        names = [path.relative_to(root).as_posix() for path in paths]
        check_utf8([self.name])
        if bad := unreadable(paths, f"checking {self.name}"):
            raise UserError(bad_images_message([(names[row], reason) for row, reason in bad.items()], len(paths)))
        return FolderImages(paths, names, [NO_CLASS] * len(paths))

    def describe(self) -> dict[str, str]:
        """Returns what results must have in common to be compared, made to be written as JSON."""
        return {"name": self.name, "images": identity(self.images)}

    def source(self, binding: ModuleBinding) -> BatchSource:
        """Returns what makes batches of the images in the form that a module wants."""
        # No domain has such a name, so nothing that was prepared of one is mistaken for these.
        name = f"{OUT_OF_DISTRIBUTION}/{self.name}"
        part = SplitPart("held_out", {name: np.arange(len(self.images))})
        return BatchSource({name: self.images}, [part], binding, is_augmented=False)

    def splits(self, binding: ModuleBinding, batch_size: int) -> list[EvaluationSplit]:
        """Returns the images as one split, which no client trains on."""
        found = self.source(binding).evaluation_splits(batch_size)
        return [replace(split, name=split.domain, domain=self.name) for split in found]


DataModule = Any
"""A ``FederatedDataModule``, whose file imports this one."""


def checked_target(data: DataModule) -> DataModule:
    """Returns a data set that is to be measured.

    Raises:
        UserError: if it has a protocol of its own.
    """
    if data.given_protocol is not None:
        raise UserError(f"{data.name} is a target of another data set and only measured. Leave out its protocol.")
    return data


@dataclass(frozen=True)
class Transfer:
    """Another data set: the images on which it tests, or all of it if it sets none apart.

    Attributes:
        data: the data set, as it would be trained on.
    """

    data: DataModule

    @property
    def class_names(self) -> tuple[str, ...]:
        """Its classes, in the order of its labels."""
        return tuple(self.data.class_names)

    @property
    def part(self) -> SplitPart:
        """Its test splits and held-out domains, or else all of its images."""
        rows: dict[str, Any] = {}
        for part in self.data.split_parts:
            if part.role in ("test", "held_out"):
                rows |= part.rows_by_domain
        everything = {domain: np.arange(len(images)) for domain, images in self.data.images.items()}
        return SplitPart("transfer", rows or everything)

    @property
    def split_hash(self) -> str:
        """Changes with the name or class of an image that is measured."""
        return split_hash([self.part], self.data.images, self.class_names)

    def describe(self) -> dict[str, Any]:
        """Returns what results must have in common to stand in one table, made to be written as JSON."""
        images = image_hash(self.data.images, self.class_names)
        return {"name": self.data.name, "images": images, "classes": list(self.class_names), "split": self.split_hash}

    def source(self, binding: ModuleBinding) -> BatchSource:
        """Returns what makes its batches.

        Args:
            binding: what the module asks of images of its classes.
        """
        # Its domains may be called as those that train, so nothing is shared that is kept by their names.
        return BatchSource(self.data.images, [self.part], replace(binding, features={}, decoded={}), False)

    def split(self, source: BatchSource, batch_size: int, own_classes: Sequence[str]) -> EvaluationSplit:
        """Returns all that is measured as one split.

        Args:
            source: what :meth:`source` gave.
            batch_size: images in a batch.
            own_classes: the classes that train, which a split does not name.
        """
        (split,) = source.evaluation_splits(batch_size)
        others = () if self.class_names == tuple(own_classes) else self.class_names
        return replace(split, name=f"transfer/{self.data.name}", domain=self.data.name, class_names=others)


def transfer_table(transfers: Sequence[Transfer]) -> list[dict[str, Any]]:
    """Returns the names of the images that are measured of each data set, made to be written as JSON."""
    table: list[dict[str, Any]] = []
    for transfer in transfers:
        for domain, rows in transfer.part.rows_by_domain.items():
            names = [transfer.data.images[domain].names[row] for row in rows]
            entry = {"role": "transfer", "domain": f"{transfer.data.name}/{domain}", "client": None, "images": names}
            table.append(entry)
    return table


@dataclass(frozen=True)
class BoundLoaders:
    """Batches for one bound method.

    Attributes:
        images: images by domain.
        parts: which of them play which role.
        class_names: names of all classes.
        num_trained: how many of these, the first ones, train.
        transfers: other data sets that are measured.
        binding: what the method asks of images of the classes that train.
        is_augmented: whether training images change from pass to pass.
        of_classes: what it asks of images of other classes, by their names.
    """

    images: Mapping[str, Images]
    parts: Sequence[SplitPart]
    class_names: Sequence[str]
    num_trained: int
    transfers: Sequence[Transfer]
    binding: ModuleBinding
    is_augmented: bool
    of_classes: dict[tuple[str, ...], ModuleBinding] = field(default_factory=dict)

    @property
    def other_classes(self) -> list[tuple[str, ...]]:
        """The names of the classes of splits that are of others than those that train, each list once."""
        lists = [self._names(part.classes) for part in self.parts if part.classes]
        lists += [transfer.class_names for transfer in self.transfers]
        trained = tuple(self.class_names[: self.num_trained])
        return [names for names in dict.fromkeys(lists) if names != trained]

    def bind_classes(self, class_names: Sequence[str], prepare: Prepare | None, key: str) -> None:
        """Takes what the method asks of images whose classes are these, before anything is computed.

        Args:
            class_names: the classes.
            prepare: as of ``bind``.
            key: as of ``bind``; where it is the same, what is computed of an image is shared.
        """
        features = self.binding.features if key == self.binding.key else {}
        binding = replace(self.binding, prepare=prepare, key=key, features=features, decoded={})
        self.of_classes[tuple(class_names)] = binding

    @cached_property
    def main_source(self) -> BatchSource:
        """Makes the loaders of the data set itself."""
        bindings: dict[tuple[int, ...], ModuleBinding] = {}
        for part in self.parts:
            names = self._names(part.classes)
            if names in self.of_classes:
                bindings[part.classes] = self.of_classes[names]
        return BatchSource(self.images, self.parts, self.binding, self.is_augmented, self.class_names, bindings)

    def encode(self) -> None:
        """Computes, or reads from the cache, all that is prepared of images; without it, keeps images decoded."""
        for source in (self.main_source, *self._transfer_sources):
            source.encode()

    def evaluation_splits(self, batch_size: int) -> list[EvaluationSplit]:
        """Returns every split that is measured, those of other data sets at the end."""
        trained_names = self.class_names[: self.num_trained]
        splits = []
        for split in self.main_source.evaluation_splits(batch_size):
            splits.append(split)
            if split.role == "personal":
                # The same images under the global model, beside the client's own.
                splits.append(replace(split, name=f"global/{split.domain}", role="global"))
        for transfer, source in zip(self.transfers, self._transfer_sources, strict=True):
            splits.append(transfer.split(source, batch_size, trained_names))
        return splits

    @cached_property
    def _transfer_sources(self) -> list[BatchSource]:
        return [each.source(self.of_classes.get(each.class_names, self.binding)) for each in self.transfers]

    def _names(self, classes: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.class_names[label] for label in classes)
