"""The drawings of the benchmark, and drawings with captions for pretraining."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fedvlp.data.styled_shapes.drawings.canvas import COLOURS, GROUNDS, PATTERNS, SIZES, Scene, sample_scene
from fedvlp.data.styled_shapes.drawings.styles import COLOURLESS, GROUNDLESS, STYLES, draw
from fedvlp.data.styled_shapes.drawings.things import THINGS

ATTRIBUTES: tuple[str, ...] = tuple(field.name for field in fields(Scene))
"""The attributes that a caption may name, in the order of their codes."""

_VALUES: dict[str, tuple[str, ...]] = {
    "style": STYLES,
    "thing": tuple(THINGS),
    "pattern": PATTERNS,
    "colour": tuple(COLOURS),
    "ground": tuple(GROUNDS),
    "size": tuple(SIZES),
}
_PROBABILITIES: dict[str, float] = {
    "style": 0.45,
    "thing": 0.5,
    "pattern": 0.4,
    "colour": 0.4,
    "ground": 0.35,
    "size": 0.3,
}
"""For each attribute how often a caption names it, where the drawing shows it."""
_WORDS: dict[str, tuple[str, str]] = {
    "balloon": ("balloon", "airship"),
    "boat": ("boat", "yacht"),
    "car": ("car", "taxi"),
    "hat": ("hat", "cap"),
    "house": ("house", "hut"),
    "mug": ("mug", "cup"),
    "shirt": ("shirt", "jersey"),
    "umbrella": ("umbrella", "parasol"),
    "vase": ("vase", "jug"),
    "bell": ("bell", "chime"),
    "striped": ("striped", "banded"),
    "spotted": ("dotted", "spotted"),
    "checked": ("checked", "tartan"),
    "plain": ("plain", "blank"),
    "small": ("small", "tiny"),
    "large": ("large", "big"),
    "studio": ("photograph", "snapshot"),
    "sticker": ("cartoon", "comic"),
    "ink": ("ink", "marker"),
    "chalk": ("chalk", "blackboard"),
    "poster": ("poster", "paper"),
    "watercolour": ("watercolor", "wash"),
    "neon": ("neon", "glowing"),
}
"""For each attribute's value its common word and its rare one; values that are not here are their own word."""


@dataclass(frozen=True)
class Caption:
    """A text, and the codes of the attributes that it names.

    Args:
        text: The words, without a full stop.
        codes: One number per attribute of ``ATTRIBUTES``: the value's index, or -1 where the caption is silent.
    """

    text: str
    codes: tuple[int, ...]


def scene_codes(scene: Scene) -> NDArray[np.int64]:
    """Returns a scene's attributes as numbers of shape ``[6]``; what its style does not show is -2."""
    hidden = {"colour": scene.style in COLOURLESS, "ground": scene.style in GROUNDLESS}
    codes = [-2 if hidden.get(name) else _VALUES[name].index(getattr(scene, name)) for name in ATTRIBUTES]
    return np.asarray(codes, dtype=np.int64)


def describe(scene: Scene, generator: np.random.Generator, rare: float = 0.015) -> Caption:
    """Returns a caption that names at least one attribute that the drawing of the scene shows.

    Args:
        scene: What is drawn.
        generator: Source of randomness.
        rare: Probability of a value's rare word, in [0, 1].
    """
    shown = scene_codes(scene)
    visible = [index for index in range(len(ATTRIBUTES)) if shown[index] >= 0]
    named = [index for index in visible if generator.random() < _PROBABILITIES[ATTRIBUTES[index]]]
    # A caption that names nothing would be true of every drawing.
    named = named or [visible[int(generator.integers(len(visible)))]]
    words = {}
    for index in named:
        value = getattr(scene, ATTRIBUTES[index])
        words[ATTRIBUTES[index]] = _WORDS.get(value, (value, value))[int(generator.random() < rare)]
    order = generator.permutation(("size", "colour", "pattern"))
    phrases = [" ".join(words[name] for name in [*order, "thing"] if name in words)]
    if "style" in words:
        phrases.append(words["style"])
    if "ground" in words:
        phrases.append("on " + words["ground"])
    phrases = [phrases[index] for index in generator.permutation(len(phrases)) if phrases[index]]
    codes = tuple(int(shown[index]) if index in named else -1 for index in range(len(ATTRIBUTES)))
    separator = " " if generator.random() < 0.5 else ", "
    return Caption(separator.join(phrases), codes)


def is_true(captions: NDArray[np.int64], scenes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns which captions are true of which scenes, of shape ``[captions, scenes]``, from their codes.

    Args:
        captions: Codes of the captions, of shape ``[captions, 6]``.
        scenes: Codes of the scenes, of shape ``[scenes, 6]``.
    """
    agrees = (captions[:, None] == scenes[None]) | (captions[:, None] == -1)
    return np.asarray(agrees.all(axis=2))


PRETRAINING_STYLES: dict[str, float] = {
    "studio": 0.06,
    "sticker": 0.16,
    "ink": 0.16,
    "chalk": 0.16,
    "poster": 0.16,
    "watercolour": 0.16,
    "neon": 0.14,
}
"""The styles that pretraining shows, with their shares; it shows none of the benchmark's own styles."""


def pretraining_drawing(seed: int, index: int) -> tuple[NDArray[np.uint8], Scene]:
    """Returns one drawing of shape ``[64, 64, 3]`` and its scene, which depend on the seed and the index alone."""
    # The 1 keeps these drawings apart from those of the benchmark, whose seeds have a 2 there.
    generator = np.random.default_rng([seed, 1, index])
    style = str(generator.choice(tuple(PRETRAINING_STYLES), p=tuple(PRETRAINING_STYLES.values())))
    scene = sample_scene(generator, style)
    return draw(scene, generator), scene


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
