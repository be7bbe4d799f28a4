"""Images in the form in which one module wants them: pixels, or what its frozen parts computed from them."""

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
from fedvlp.data.cache.feature_cache import Features, cache_key, load_features, save_features
from fedvlp.data.cache.fixed_steps import FixedSteps, fixed_steps
from fedvlp.data.files.images import FolderImages, Images, Indices, Transform
from fedvlp.data.loading.encoding import Prepare, encode
from fedvlp.data.loading.loaders import DeviceLoader, ImageDataset, PreparedLoader, image_loader
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
        prepare: makes tensors [B, ...] by name of images [B, 3, V, V]; None leaves them as they are.
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
