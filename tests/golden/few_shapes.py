"""The first images of each class of StyledShapes, so that every method can be measured in a second."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedvlp import StyledShapes
from fedvlp.data.files.images import ArrayImages, Images

IMAGES_OF_A_CLASS = 4
"""In each style, of 20."""


class FewShapes(StyledShapes):
    """StyledShapes with a fifth of its images."""

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """Returns the first images of each class of each style, and the names of the classes."""
        domains, class_names = super().load_domains()
        return {name: _first(images, len(class_names)) for name, images in domains.items()}, class_names


def _first(images: Images, num_classes: int) -> Images:
    """Returns the first images of each class, in their order."""
    places = [np.flatnonzero(images.labels == label)[:IMAGES_OF_A_CLASS] for label in range(num_classes)]
    kept = np.sort(np.concatenate(places))
    pixels = np.stack([np.asarray(images[int(place)]) for place in kept])
    return ArrayImages(pixels, images.labels[kept], [images.names[place] for place in kept])
