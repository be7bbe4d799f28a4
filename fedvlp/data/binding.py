"""Serves batches in the form in which one module wants them: images, or what its frozen parts made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedvlp.data.feature_cache import Prepare, cache_key, encode, load_features, save_features
from fedvlp.data.images import Images, Indices, Transform
from fedvlp.data.loaders import DeviceLoader, ImageDataset, PreparedLoader, image_loader

Loader = PreparedLoader | DeviceLoader


@dataclass(frozen=True)
class Part:
    """Some images of one domain that are to be served.

    Attributes:
        domain: its name.
        images: its images.
        rows: which of them, ascending.
        needed: which of them are ever served prepared, ascending; they are computed together.
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
        features: what ``prepare`` gave, by domain, and for which of its rows.
    """

    transform: Transform
    train_transform: Transform | None = None
    prepare: Prepare | None = None
    key: str = ""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    cache_dir: Path | None = None
    num_workers: int = 0
    features: dict[str, tuple[Indices, dict[str, Tensor]]] = field(default_factory=dict)

    def prepared(self, domain: str, images: Images, rows: Indices) -> dict[str, Tensor]:
        """Returns what ``prepare`` gives for these rows of a domain: from memory, from disk or computed now."""
        known = self.features.get(domain)
        if known is None or not np.array_equal(known[0], rows):
            known = (rows, self._read_or_encode(domain, images, rows))
            self.features[domain] = known
        return known[1]

    def _read_or_encode(self, domain: str, images: Images, rows: Indices) -> dict[str, Tensor]:
        """Reads the tensors of a domain from the cache, or computes them and keeps them there."""
        if self.prepare is None:
            raise RuntimeError("There is no `prepare` to compute anything with; give one to bind().")
        path = None
        if self.cache_dir is not None:
            name = cache_key(self.key, self.transform, images, rows, self.device)
            path = self.cache_dir / "features" / f"{name}.safetensors"
            cached = load_features(path, len(rows), self.device)
            if cached is not None:
                return cached
        tensors = encode(
            images, rows, self.transform, self.prepare, self.device, self.num_workers, f"encoding {domain}"
        )
        if path is not None:
            save_features(path, tensors)
        return tensors

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
        transform = self.train_transform if is_augmented and self.train_transform else self.transform
        dataset = ImageDataset([(part.images, part.rows) for part in parts], transform)
        return DeviceLoader(image_loader(dataset, batch_size, self.num_workers, seed), self.device)
