"""A few icons of a few things in four styles, so that every method can be measured in a second."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedvlp import IconDomains
from fedvlp.data.files.images import ArrayImages, Images

DOMAINS = ("emoji", "line", "solid", "pixel")
CLASSES = 18
IMAGES_OF_A_CLASS = 4
"""At most; a class of a style has fewer where it has fewer than four."""


class FewIcons(IconDomains):
    """The first classes of IconDomains in four of its styles."""

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """Returns the first images of each class of each style, and the names of the classes."""
        domains, class_names = super().load_domains()
        return {name: _first(domains[name]) for name in DOMAINS}, class_names[:CLASSES]


def _first(images: Images) -> Images:
    """Returns the first images of each class, in their order."""
    places = [np.flatnonzero(images.labels == label)[:IMAGES_OF_A_CLASS] for label in range(CLASSES)]
    kept = np.sort(np.concatenate(places))
    pixels = np.stack([np.asarray(images[int(place)]) for place in kept])
    return ArrayImages(pixels, images.labels[kept], [images.names[place] for place in kept])
