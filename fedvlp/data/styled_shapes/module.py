"""Made-up domains: one set of shapes drawn in several styles, with no download."""

from __future__ import annotations

import logging
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvlp.data.files.images import ArrayImages, Images
from fedvlp.data.module import FederatedDataModule
from fedvlp.utils.files import write_cache_file
from fedvlp.utils.ranges import Seed

log = logging.getLogger(__name__)
Arrays = dict[str, NDArray[Any]]


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
        arrays = self._read_or_draw()
        class_names = [str(name) for name in arrays["class_names"]]
        domains = sorted(name.removeprefix("labels/") for name in arrays if name.startswith("labels/"))
        images: dict[str, Images] = {}
        for domain in domains:
            images[domain] = _images(domain, arrays[f"images/{domain}"], arrays[f"labels/{domain}"], class_names)
        return images, class_names

    def _read_or_draw(self) -> Arrays:
        """Reads the drawings from the cache, or draws them and keeps them there."""
        from fedvlp.data.styled_shapes.drawings import STYLED_SHAPES_VERSION

        if self.cache_dir is None:
            return draw(self.drawing_seed)
        # A later version draws other images, so it must not read these.
        path = self.cache_dir / "styled_shapes" / f"version-{STYLED_SHAPES_VERSION}-seed-{self.drawing_seed}.npz"
        arrays = _read(path)
        if arrays is None:
            arrays = draw(self.drawing_seed)
            write_cache_file(path, lambda temporary: _write(temporary, arrays))
        return arrays


def draw(seed: int) -> Arrays:
    """Returns the drawings as arrays: ``class_names``, and ``images/<style>`` and ``labels/<style>`` for each style."""
    from fedvlp.data.styled_shapes.drawings import styled_shapes

    shapes = styled_shapes(seed)
    arrays: Arrays = {"class_names": np.asarray(shapes.class_names)}
    for domain, (images, labels) in shapes.domains.items():
        arrays[f"images/{domain}"] = images
        arrays[f"labels/{domain}"] = labels
    return arrays


def _images(domain: str, images: NDArray[np.uint8], labels: NDArray[np.int64], class_names: list[str]) -> ArrayImages:
    names = [f"{domain}/{class_names[label]}/{i:05d}" for i, label in enumerate(labels)]
    return ArrayImages(images, labels, names)


def _read(path: Path) -> Arrays | None:
    """Reads cached drawings; None if there are none or the file is damaged."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        log.warning("The cached drawings %s can't be read (%s); drawing them again.", path, error)
        return None


def _write(path: Path, arrays: Arrays) -> None:
    arguments: dict[str, Any] = dict(arrays)
    with path.open("wb") as file:
        np.savez(file, **arguments)
