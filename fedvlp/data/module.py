"""Base class of every data set: domains in, clients with training batches and evaluation splits out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fedvlp.data.binding import Binding, EvaluationSplit, Loader
from fedvlp.data.checks import check_arguments, choose_held_out, mapped_names
from fedvlp.data.feature_cache import Prepare
from fedvlp.data.images import Images, Indices, Transform
from fedvlp.data.loaders import ImageDataset, image_loader
from fedvlp.data.splits import Share, deal, split_hash, split_table
from fedvlp.errors import UserError
from fedvlp.state import Client


class FederatedDataModule(L.LightningDataModule):
    """Images of several domains: each source domain is a client, held-out domains only test.

    A subclass says where the images are in ``load_domains``. Under a plain ``lightning.Trainer`` all source domains
    train together and batches are (images, labels).

    Args:
        held_out: Domain or domains that no client sees; all their images test. None makes every domain a client.
        batch_size: Images in a training batch.
        eval_batch_size: Images in an evaluation batch.
        validation_fraction: Share of each class of each source domain that validates, in (0, 1).
        split_seed: Seed of the split into training and validation images.
        augmentation: "none", or "crop_flip" for random crops and flips of training images, which are then read and
            encoded anew each time.
        class_names_map: Names for prompts in place of the data set's own, by its own, such as {"tv": "television"}.
        num_workers: Processes that read images; 0 reads them in the main process. Batches are the same for any number.
        cache_dir: Folder for computed features and generated images; null keeps nothing on disk.
    """

    def __init__(
        self,
        held_out: str | list[str] | None = None,
        batch_size: int = 16,
        eval_batch_size: int = 64,
        validation_fraction: float = 0.2,
        split_seed: int = 0,
        augmentation: Literal["none", "crop_flip"] = "none",
        class_names_map: dict[str, str] | None = None,
        num_workers: int = 0,
        cache_dir: str | None = "~/.cache/fedvlp",
    ) -> None:
        super().__init__()
        check_arguments(batch_size, eval_batch_size, validation_fraction, split_seed, augmentation, num_workers)
        self.held_out = [held_out] if isinstance(held_out, str) else list(held_out or [])
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.validation_fraction, self.split_seed = validation_fraction, split_seed
        self.augmentation, self.num_workers = augmentation, num_workers
        self.class_names_map = dict(class_names_map or {})
        self.cache_dir = None if cache_dir is None else Path(os.path.expanduser(cache_dir))
        self._binding: Binding | None = None
        self._bound_to: L.LightningModule | None = None

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """Returns the images of each domain by name, in an order that never changes, and the class names.

        Called once. It should be cheap: ``verified_domains`` is the place to open every file.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement load_domains().")

    def verified_domains(self) -> Mapping[str, Images]:
        """Returns the domains once they were found to be readable; called once, before the split."""
        return self._loaded[0]

    @cached_property
    def _loaded(self) -> tuple[Mapping[str, Images], list[str]]:
        """The answer of ``load_domains``."""
        return self.load_domains()

    @cached_property
    def _images(self) -> Mapping[str, Images]:
        """The domains that are used, by name."""
        return self.verified_domains()

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, in the order of the labels, as prompts shall call them."""
        return mapped_names(self._loaded[1], self.class_names_map)

    @property
    def domains(self) -> list[str]:
        """Names of all domains, sorted."""
        return sorted(self._loaded[0])

    @property
    def held_out_domains(self) -> list[str]:
        """Names of the domains that no client sees, sorted."""
        return choose_held_out(self.held_out, self.domains)

    @property
    def source_domains(self) -> list[str]:
        """Names of the domains that train, sorted."""
        return [name for name in self.domains if name not in self.held_out_domains]

    @cached_property
    def shares(self) -> list[Share]:
        """Which images play which role: training, validation and held-out, in the order of clients and domains."""
        sources, held_out = self.source_domains, self.held_out_domains  # a wrong name is found before files are read
        return deal(self._images, sources, held_out, self.validation_fraction, self.split_seed)

    @property
    def clients(self) -> list[Client]:
        """The clients, in the order of their ids."""
        return [share.client for share in self.shares if share.role == "train" and share.client is not None]

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return len(self.clients)

    def prepare_data(self) -> None:
        """Reads or makes the images, so that every mistake is found before training."""
        self.shares  # noqa: B018 (computed here, kept for later)

    def setup(self, stage: str | None = None) -> None:
        """Splits the images; takes the transform of the trainer's module unless ``bind`` gave one for it."""
        self.shares  # noqa: B018 (computed here, kept for later)
        module = getattr(self.trainer, "lightning_module", None)
        transform = getattr(module, "transform", None)
        if transform is not None and (self._binding is None or self._bound_to not in (None, module)):
            self.bind(transform, train_transform=getattr(module, "train_transform", None))

    def bind(
        self,
        transform: Transform,
        prepare: Prepare | None = None,
        key: str = "",
        device: torch.device | str = "cpu",
        train_transform: Transform | None = None,
    ) -> None:
        """Says what the module asks of the images; forgets what was computed for another.

        Args:
            transform: makes a tensor [3, H, W] of a PIL image.
            prepare: makes of images [B, 3, H, W] on ``device`` what its frozen parts compute, tensors [B, ...] by name.
                Batches then hold these in place of images; they are computed once for each image.
            key: everything but transform, images and device that ``prepare`` depends on: weights, options, precision.
            device: where batches are wanted.
            train_transform: ``transform`` with random crops and flips, for ``augmentation="crop_flip"``.
        """
        if self.augmentation == "crop_flip" and train_transform is None:
            raise UserError('augmentation="crop_flip" needs a module with a `train_transform`. Add it, or use "none".')
        self._bound_to = getattr(self.trainer, "lightning_module", None)
        self._binding = Binding(
            transform, train_transform, prepare, key, torch.device(device), self.cache_dir, self.num_workers
        )

    @property
    def binding(self) -> Binding:
        """What the module asks of the images."""
        if self._binding is None:
            raise UserError(
                "The data do not know how the module wants its images. Give it a `transform` (PIL image to tensor), "
                "or call bind(transform=...)."
            )
        return self._binding

    def encode(self) -> None:
        """Computes, or reads from the cache, all that ``prepare`` gives; else each domain waits for its first batch."""
        for domain in self.domains if self.binding.prepare is not None else []:
            rows = self._prepared_rows(domain)
            if len(rows):
                self.binding.prepared(domain, self._images[domain], rows)

    def train_dataloader(
        self, client: Client | None = None, seed: int | None = None
    ) -> Loader | DataLoader[tuple[Tensor, int]]:
        """Returns shuffled training batches of (inputs, labels); each pass over them has its own order.

        Args:
            client: whose images; None takes those of all source domains, as a plain Trainer wants them.
            seed: of order and augmentation in all passes; None takes that of ``seed_everything``.
        """
        seed = torch.initial_seed() if seed is None else seed
        shares = [share for share in self.shares if share.role == "train"]
        is_augmented = self.augmentation == "crop_flip"
        if client is None:
            transform = self.binding.train_transform if is_augmented else self.binding.transform
            return image_loader(self._dataset(shares, transform), self.batch_size, self.num_workers, seed)
        return self._loader(shares[client.id], self.batch_size, seed, is_augmented)

    def evaluation_splits(self) -> list[EvaluationSplit]:
        """Returns the validation split of each client, then each held-out domain; none of them empty."""
        return [
            EvaluationSplit(
                name=share.name,
                role=share.role,
                domain=share.domain,
                client=share.client,
                loader=self._loader(share, self.eval_batch_size),
                num_examples=len(share.rows),
            )
            for share in self.shares
            if share.role != "train"
        ]

    def val_dataloader(self) -> list[DataLoader[tuple[Tensor, int]]]:
        """Returns a loader of images for each client's validation split."""
        return self._image_loaders("validation")

    def test_dataloader(self) -> list[DataLoader[tuple[Tensor, int]]]:
        """Returns a loader of images for each held-out domain, or the validation loaders where none is held out."""
        return self._image_loaders("held_out" if self.held_out_domains else "validation")

    @cached_property
    def split_hash(self) -> str:
        """16 hexadecimal digits that change with the role, domain, name or class of any image."""
        return split_hash(self.shares, self._images, self._loaded[1])

    def split_table(self) -> list[dict[str, Any]]:
        """Returns the names of the images for each role and client, made to be written as JSON."""
        return split_table(self.shares, self._images)

    def _loader(self, share: Share, batch_size: int, seed: int | None = None, is_augmented: bool = False) -> Loader:
        """Returns batches for a bound module: prepared where it can, images where they change from pass to pass."""
        images = self._images[share.domain]
        if self.binding.prepare is None or is_augmented:
            return self.binding.image_loader(images, share.rows, batch_size, seed, is_augmented)
        needed = self._prepared_rows(share.domain)
        return self.binding.prepared_loader(share.domain, images, share.rows, needed, batch_size, seed)

    def _prepared_rows(self, domain: str) -> Indices:
        """Returns the rows of a domain that are ever served prepared: all, but for training images that change."""
        roles = {"train", "validation", "held_out"} - ({"train"} if self.augmentation == "crop_flip" else set())
        rows = [share.rows for share in self.shares if share.domain == domain and share.role in roles]
        return np.sort(np.concatenate(rows)) if rows else np.empty(0, np.int64)

    def _image_loaders(self, role: str) -> list[DataLoader[tuple[Tensor, int]]]:
        """Returns a loader of images, in order, for each share of a role."""
        return [
            image_loader(self._dataset([share], self.binding.transform), self.eval_batch_size, self.num_workers)
            for share in self.shares
            if share.role == role
        ]

    def _dataset(self, shares: list[Share], transform: Transform | None) -> ImageDataset:
        """Returns the images of some shares, one after another."""
        parts = [(self._images[share.domain], share.rows) for share in shares]
        return ImageDataset(parts, transform or self.binding.transform)
