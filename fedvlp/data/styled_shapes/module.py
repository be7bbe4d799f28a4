"""Made-up domains: one set of shapes drawn in several styles, with no download."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedvlp.data.files.images import ArrayImages, Images
from fedvlp.data.module import FederatedDataModule
from fedvlp.data.styled_shapes import drawings
from fedvlp.utils.files import write_cache_file
from fedvlp.utils.ranges import Seed

log = logging.getLogger(__name__)


class StyledShapes(FederatedDataModule):
    """Objects drawn by code in several styles, each of them a domain; made in seconds, the same for the same seed.

    Args:
        drawing_seed: Seed of the drawings; the benchmark is seed 0.
        **options: The arguments of FederatedDataModule.
    """

    def __init__(self, drawing_seed: Seed = 0, **options: Any) -> None:
        super().__init__(**options)
        self.drawing_seed = drawing_seed

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """Returns the drawings of each style and the names of what is drawn, from the cache or drawn now."""
        arrays = self._arrays()
        class_names = list(drawings.CLASS_NAMES)
        images: dict[str, Images] = {}
        for domain in sorted(drawings.STYLES):
            labels = arrays[f"labels/{domain}"]
            names = [f"{domain}/{class_names[label]}/{row:05d}" for row, label in enumerate(labels)]
            images[domain] = ArrayImages(arrays[f"images/{domain}"], labels, names)
        return images, class_names

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """Reads ``images/<style>`` and ``labels/<style>`` from the cache, or draws them and keeps them there."""
        path = None
        if self.cache_dir is not None:
            # A later version draws other images, so it must not read these.
            name = f"version-{drawings.STYLED_SHAPES_VERSION}-seed-{self.drawing_seed}.safetensors"
            path = self.cache_dir / "styled_shapes" / name
        try:
            if path is not None and path.is_file():
                return load_file(path)
        except (SafetensorError, OSError) as error:
            log.warning("The cached drawings %s can't be read (%s); drawing them again.", path, error)
        arrays: dict[str, NDArray[Any]] = {}
        for domain, (images, labels) in drawings.styled_shapes(self.drawing_seed).items():
            arrays[f"images/{domain}"] = images
            arrays[f"labels/{domain}"] = labels
        if path is not None:
            write_cache_file(path, lambda temporary: save_file(arrays, temporary))
        return arrays
