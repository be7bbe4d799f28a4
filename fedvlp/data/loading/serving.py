"""Serves the shares of a split as batches, in the form in which a bound module wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader

from fedvlp.core.state import Client
from fedvlp.data.files.images import Images, Indices
from fedvlp.data.loading.binding import Binding, Loader, Part
from fedvlp.data.loading.loaders import ImageDataset, image_loader
from fedvlp.data.splits import Role, Share


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
    """

    name: str
    role: Literal["validation", "test", "held_out"]
    domain: str
    clients: tuple[Client, ...]
    loader: Loader
    num_examples: int


@dataclass(frozen=True)
class Serving:
    """Makes loaders for shares.

    Attributes:
        images: images by domain.
        shares: which of them play which role.
        binding: what the module asks of images.
        is_augmented: whether training images change from pass to pass, so that nothing can be prepared of them.
    """

    images: Mapping[str, Images]
    shares: Sequence[Share]
    binding: Binding
    is_augmented: bool

    def of_role(self, *roles: Role) -> list[Share]:
        """Returns the shares of some roles, in their order."""
        return [share for share in self.shares if share.role in roles]

    def encode(self) -> None:
        """Computes, or reads from the cache, all that ``prepare`` gives; without it, keeps images that are read often.

        Images that change from pass to pass begin with the whole file each time.
        """
        if self.binding.prepare is None:
            fixed = [(domain, images, self._fixed_rows(domain)) for domain, images in self.images.items()]
            self.binding.keep_decoded([Part(domain, images, rows, rows) for domain, images, rows in fixed])
            return
        for domain in self.images:
            rows = self.prepared_rows(domain)
            if len(rows):
                self.binding.prepared(domain, self.images[domain], rows)

    def train_loader(self, share: Share, batch_size: int, seed: int) -> Loader:
        """Returns shuffled training batches: prepared where it can be, images where they change from pass to pass."""
        if self.is_augmented:
            return self.binding.image_loader(self._parts(share), batch_size, seed, is_augmented=True)
        return self._loader(share, batch_size, seed)

    def evaluation_splits(self, batch_size: int) -> list[EvaluationSplit]:
        """Returns every share that measures, in the order of shares."""
        return [
            EvaluationSplit(
                name=share.name,
                role=share.role,
                domain=share.parts[0][0],
                clients=share.clients,
                loader=self._loader(share, batch_size),
                num_examples=len(share),
            )
            for share in self.shares
            if share.role != "train"
        ]

    def image_loaders(self, batch_size: int, *roles: Role) -> list[DataLoader[tuple[Tensor, int]]]:
        """Returns a loader of images, in order, for each share of some roles; for a plain Trainer."""
        workers = self.binding.num_workers
        return [image_loader(self.dataset([share]), batch_size, workers) for share in self.of_role(*roles)]

    def dataset(self, shares: Sequence[Share], is_augmented: bool = False) -> ImageDataset:
        """Returns the images of some shares, one after another, for a plain Trainer."""
        parts = [part for share in shares for part in self._parts(share)]
        if not is_augmented:
            self.binding.keep_decoded(parts)
        return self.binding.dataset(parts, is_augmented)

    def prepared_rows(self, domain: str) -> Indices:
        """Returns the rows of a domain to prepare: all, so that every split shares them, unless few will be served."""
        rows = self._fixed_rows(domain)
        is_few = self.is_augmented or 4 * len(rows) < len(self.images[domain])
        return rows if is_few else np.arange(len(self.images[domain]))

    def _fixed_rows(self, domain: str) -> Indices:
        """Returns the rows of a domain that are ever served as they are: all, but for training images that change."""
        rows = [
            rows
            for share in self.shares
            for name, rows in share.parts
            if name == domain and not (share.role == "train" and self.is_augmented)
        ]
        return np.sort(np.concatenate(rows)) if rows else np.empty(0, np.int64)

    def _loader(self, share: Share, batch_size: int, seed: int | None = None) -> Loader:
        """Returns batches for the bound module: prepared if it prepares, else images."""
        if self.binding.prepare is None:
            return self.binding.image_loader(self._parts(share), batch_size, seed)
        return self.binding.prepared_loader(self._parts(share), batch_size, seed)

    def _parts(self, share: Share) -> list[Part]:
        """Returns what to serve of each domain."""
        return [Part(domain, self.images[domain], rows, self.prepared_rows(domain)) for domain, rows in share.parts]
