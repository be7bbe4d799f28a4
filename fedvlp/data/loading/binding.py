"""Serves batches in the form in which one module wants them: images, or what its frozen parts made of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedvlp.data.cache.decode_cache import DecodedImages, keep_decoded
from fedvlp.data.cache.feature_cache import Features, Prepare, cache_key, encode, load_features, save_features
from fedvlp.data.cache.fixed_steps import FixedSteps, fixed_steps
from fedvlp.data.files.images import FolderImages, Images, Indices, Transform
from fedvlp.data.loading.loaders import DeviceLoader, ImageDataset, PreparedLoader, image_loader
from fedvlp.utils.locks import locked

Loader = PreparedLoader | DeviceLoader


@dataclass(frozen=True)
class Part:
    """Some images of one domain that are to be served.

    Attributes:
        domain: its name.
        images: its images.
        rows: which of them, ascending.
        needed: which of them are prepared, ascending; they are computed together.
    """

    domain: str
    images: Images
    rows: Indices
    needed: Indices


@dataclass(frozen=True)
class Binding:
    """What a module asks of images, and what was computed for it.

    Attributes:
        transform: makes a tensor [3, H, W] of a PIL image.
        train_transform: the same with random crops and flips.
        prepare: makes tensors [B, ...] by name of images [B, 3, H, W]; None serves the images themselves.
        key: everything but transform, images and device that ``prepare`` depends on.
        device: where batches are wanted.
        cache_dir: folder below which computed tensors are kept; None keeps them in memory alone.
        num_workers: processes that read images.
        cache_images: whether decoded images are kept there too.
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
        """Reads the tensors of a domain from the cache, or computes them and keeps them there."""
        if self.cache_dir is None:
            return self._encode(domain, images, rows)
        name = cache_key(self.key, self.transform, images, rows, self.device)
        path = self.cache_dir / "features" / f"{name}.safetensors"
        with locked(path):
            features = load_features(path, len(rows), self.device)
            if features is None:
                features = self._encode(domain, images, rows)
                save_features(path, features)
                kept = load_features(path, len(rows), self.device) if self.device.type == "cpu" else None
                features = features if kept is None else replace(features, tensors=kept.tensors)
        return features

    def _encode(self, domain: str, images: Images, rows: Indices) -> Features:
        """Computes the tensors of a domain."""
        if self.prepare is None:
            raise RuntimeError("There is no `prepare` to compute anything with; give one to bind().")
        dataset, began = self.dataset([Part(domain, images, rows, rows)]), time.perf_counter()
        tensors = encode(dataset, self.prepare, self.device, self.num_workers, f"encoding {domain}")
        for tensor in tensors.values():
            tensor[-1:].cpu()  # waits until the device is done
        return Features(tensors, time.perf_counter() - began)

    def prepared_loader(self, parts: Sequence[Part], batch_size: int, seed: int | None = None) -> PreparedLoader:
        """Returns batches of prepared tensors for rows of one domain or several.

        Args:
            parts: what to serve of each domain.
            batch_size: images in a batch.
            seed: of the order; None keeps that of ``parts``.
        """
        rows = [torch.from_numpy(np.searchsorted(part.needed, part.rows)).to(self.device) for part in parts]
        labels = np.concatenate([part.images.labels[part.rows] for part in parts])
        return PreparedLoader(
            lambda: [self.prepared(part.domain, part.images, part.needed) for part in parts],
            rows,
            torch.from_numpy(labels).to(self.device),
            batch_size,
            seed,
        )

    def image_loader(
        self, parts: Sequence[Part], batch_size: int, seed: int | None = None, is_augmented: bool = False
    ) -> DeviceLoader:
        """Returns batches of images for rows of one domain or several, in their order or shuffled by ``seed``."""
        dataset = self.dataset(parts, is_augmented)
        return DeviceLoader(image_loader(dataset, batch_size, self.num_workers, seed, self.device), self.device)

    def dataset(self, parts: Sequence[Part], is_augmented: bool = False) -> ImageDataset:
        """Returns the images of rows of one domain or several, read decoded where they are kept so."""
        kept = [(self._kept(part.domain, part.images), part.rows) for part in parts]
        if self._steps is not None and not is_augmented and all(isinstance(of, DecodedImages) for of, _ in kept):
            return ImageDataset(kept, self._steps.rest)
        transform = self.train_transform if is_augmented and self.train_transform else self.transform
        return ImageDataset([(part.images, part.rows) for part in parts], transform)

    def keep_decoded(self, parts: Sequence[Part]) -> None:
        """Decodes images that will be read many times, once and for all."""
        kept = [(part.domain, self._kept(part.domain, part.images), part.rows) for part in parts]
        keep_decoded([(name, of, rows) for name, of, rows in kept if isinstance(of, DecodedImages)], self.num_workers)

    @cached_property
    def _steps(self) -> FixedSteps | None:
        """The part of the transform after which images are kept; None if they are not."""
        return fixed_steps(self.transform) if self.cache_images and self.cache_dir is not None else None

    def _kept(self, domain: str, images: Images) -> Images:
        """Returns the images of a domain so that they are read decoded where they are kept so."""
        if self._steps is None or self.cache_dir is None or not isinstance(images, FolderImages):
            return images
        if domain not in self.decoded:
            self.decoded[domain] = DecodedImages(images, self._steps, self.cache_dir / "images")
        return self.decoded[domain]
