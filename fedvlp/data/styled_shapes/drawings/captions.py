"""Captions of drawings: short texts that name some of a scene's attributes, and which scenes they are true of."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fedvlp.data.styled_shapes.drawings.scene import COLOURS, GROUNDS, PATTERNS, SIZES, Scene
from fedvlp.data.styled_shapes.drawings.styles import COLOURLESS, GROUNDLESS, STYLES
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
