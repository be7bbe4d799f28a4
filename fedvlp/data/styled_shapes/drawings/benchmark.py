"""StyledShapes: a frozen benchmark of domain generalisation, drawn by code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedvlp.data.styled_shapes.drawings.scene import PATTERNS, sample_scene
from fedvlp.data.styled_shapes.drawings.styles import STYLES, draw
from fedvlp.data.styled_shapes.drawings.things import THINGS

STYLED_SHAPES_VERSION = "1"
"""Changes whenever a drawing of the benchmark changes; belongs into the key of every cache of them."""

_DOMAINS: tuple[str, ...] = ("photo", "painting", "cartoon", "sketch")
_CLASSES: dict[str, tuple[str, str]] = {
    f"{word} {name}": (thing, pattern)
    for name, thing in (
        ("balloon", "balloon"),
        ("yacht", "boat"),
        ("taxi", "car"),
        ("fish", "fish"),
        ("cap", "hat"),
        ("cup", "mug"),
    )
    for word, pattern in (("banded", "striped"), ("spotted", "spotted"), ("tartan", "checked"))
}
"""For each class's name the thing and the pattern that are drawn."""


@dataclass(frozen=True)
class StyledShapesImages:
    """The images of the benchmark.

    Args:
        class_names: Names of the classes, in the order of the labels.
        domains: For each style its images, of shape ``[N, 64, 64, 3]``, and their labels, of shape ``[N]``.
    """

    class_names: tuple[str, ...]
    domains: dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]


def styled_shape(seed: int, domain: str, class_name: str, index: int) -> NDArray[np.uint8]:
    """Returns one image of shape ``[64, 64, 3]``, which depends on these arguments alone.

    Args:
        seed: Seed of the benchmark.
        domain: Style of the image.
        class_name: Class of the image.
        index: Number of the image in its class and style.
    """
    thing, pattern = _CLASSES[class_name]
    numbers = STYLES.index(domain), tuple(THINGS).index(thing), PATTERNS.index(pattern)
    generator = np.random.default_rng([seed, 2, *numbers, index])
    return draw(sample_scene(generator, domain, thing, pattern), generator)


def styled_shapes(seed: int = 0, images_per_class: int = 20) -> StyledShapesImages:
    """Returns all images of the benchmark, the same for the same seed; more of a class begin with the same images.

    Args:
        seed: Seed of the drawings; the frozen benchmark is seed 0.
        images_per_class: Images of each class in each style.
    """
    labels = np.repeat(np.arange(len(_CLASSES)), images_per_class)
    domains = {
        domain: (
            np.stack([styled_shape(seed, domain, name, i) for name in _CLASSES for i in range(images_per_class)]),
            labels.copy(),
        )
        for domain in _DOMAINS
    }
    return StyledShapesImages(tuple(_CLASSES), domains)
