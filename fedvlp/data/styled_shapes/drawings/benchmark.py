"""StyledShapes: a frozen benchmark of domain generalisation, drawn by code."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedvlp.data.styled_shapes.drawings.scene import PATTERNS, sample_scene
from fedvlp.data.styled_shapes.drawings.styles import STYLES, draw
from fedvlp.data.styled_shapes.drawings.things import THINGS

STYLED_SHAPES_VERSION = "1"
"""Changes whenever a drawing of the benchmark changes; belongs into the key of every cache of them."""

_DOMAINS: tuple[str, ...] = ("photo", "painting", "cartoon", "sketch")
_NOUNS: dict[str, str] = {
    "balloon": "balloon",
    "yacht": "boat",
    "taxi": "car",
    "fish": "fish",
    "cap": "hat",
    "cup": "mug",
}
"""For each noun of a class's name the thing that is drawn."""
_ADJECTIVES: dict[str, str] = {"banded": "striped", "spotted": "spotted", "tartan": "checked"}
"""For each adjective of a class's name the pattern that is drawn."""
_CLASS_NAMES: tuple[str, ...] = tuple(
    f"{adjective} {noun}" for noun, adjective in itertools.product(_NOUNS, _ADJECTIVES)
)


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
    adjective, noun = class_name.split(" ")
    thing = _NOUNS[noun]
    pattern = _ADJECTIVES[adjective]
    # The 2 keeps these drawings apart from those of the pretraining, whose seeds have a 1 there.
    place = [2, STYLES.index(domain), tuple(THINGS).index(thing), PATTERNS.index(pattern)]
    generator = np.random.default_rng([seed, *place, index])
    return draw(sample_scene(generator, domain, thing, pattern), generator)


def styled_shapes(seed: int = 0, images_per_class: int = 20) -> StyledShapesImages:
    """Returns all images of the benchmark, the same for the same seed; more of a class begin with the same images.

    Args:
        seed: Seed of the drawings; the frozen benchmark is seed 0.
        images_per_class: Images of each class in each style.
    """
    labels = np.repeat(np.arange(len(_CLASS_NAMES)), images_per_class)
    numbered = list(itertools.product(_CLASS_NAMES, range(images_per_class)))
    domains = {}
    for domain in _DOMAINS:
        images = np.stack([styled_shape(seed, domain, name, index) for name, index in numbered])
        domains[domain] = (images, labels.copy())
    return StyledShapesImages(_CLASS_NAMES, domains)
