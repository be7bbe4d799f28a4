"""Images of stripes, drawn by code: the direction is the class, the colour the domain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedvlp import FederatedDataModule
from fedvlp.data import ArrayImages, Images
from fedvlp.utils.ranges import PositiveInt

COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}
DIRECTIONS = {"rows": (1, 0), "columns": (0, 1), "diagonals": (1, 1)}
SIZE = 32


class Stripes(FederatedDataModule):
    """Striped images in three colours, without a download. The width and offset of stripes vary.

    Args:
        images_per_class: Number of images of each class and colour.
        **options: Options of FederatedDataModule.
    """

    def __init__(self, images_per_class: PositiveInt = 12, **options: Any) -> None:
        super().__init__(**options)
        self.images_per_class = images_per_class

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """Draw the images of each colour, and name the directions."""
        return {colour: self._draw_colour(colour) for colour in COLOURS}, list(DIRECTIONS)

    def _draw_colour(self, colour: str) -> ArrayImages:
        pixels = []
        labels = []
        names = []
        for label, direction in enumerate(DIRECTIONS):
            for number in range(self.images_per_class):
                pixels.append(_draw(colour, direction, number))
                labels.append(label)
                names.append(f"{colour}/{direction}/{number:03d}")
        return ArrayImages(np.stack(pixels), np.asarray(labels), names)


def _draw(colour: str, direction: str, number: int) -> np.ndarray:
    """Draw an image [32, 32, 3] in 8 bits. The number determines its width, offset and noise."""
    generator = np.random.default_rng(number)
    width = generator.integers(3, 7)
    offset = generator.integers(0, width)
    rows, columns = np.indices((SIZE, SIZE))
    down, across = DIRECTIONS[direction]
    is_stripe = (rows * down + columns * across + offset) // width % 2 == 0
    noise = generator.integers(0, 40, (SIZE, SIZE, 3))
    return np.where(is_stripe[..., None], COLOURS[colour], noise).astype(np.uint8)
