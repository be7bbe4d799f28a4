"""Other data sets that a run is measured on and does not train on, each with its own class names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedvlp.data.loading.batch_source import BatchSource, EvaluationSplit
from fedvlp.data.loading.module_binding import ModuleBinding
from fedvlp.data.split_table import image_hash, split_hash
from fedvlp.data.splits import SplitPart
from fedvlp.utils.errors import UserError

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
