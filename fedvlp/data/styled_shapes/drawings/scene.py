"""What one drawing shows: the attributes of a scene, and how they are sampled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedvlp.data.styled_shapes.drawings.things import THINGS

Colour = NDArray[np.float64]

COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.85, 0.16, 0.15),
    "orange": (0.95, 0.55, 0.12),
    "yellow": (0.96, 0.83, 0.2),
    "green": (0.2, 0.62, 0.28),
    "blue": (0.16, 0.36, 0.82),
    "purple": (0.5, 0.22, 0.68),
    "pink": (0.96, 0.55, 0.7),
    "brown": (0.5, 0.31, 0.17),
}
"""Colours of things, as red, green and blue in 0 to 1."""

GROUNDS: dict[str, tuple[float, float, float]] = {
    "snow": (0.95, 0.96, 0.98),
    "sand": (0.88, 0.79, 0.6),
    "grass": (0.5, 0.68, 0.36),
    "sky": (0.6, 0.8, 0.95),
    "night": (0.1, 0.11, 0.24),
    "stone": (0.56, 0.56, 0.57),
}
"""What a thing stands on or before, with its colour."""

PATTERNS: tuple[str, ...] = ("plain", "striped", "spotted", "checked")
"""What the body of a thing is covered with."""

SIZES: dict[str, tuple[float, float]] = {"small": (17.0, 20.0), "large": (23.0, 27.0)}
"""Half the width of a thing, in pixels of a drawing of 64 x 64 pixels."""


@dataclass(frozen=True)
class Scene:
    """The attributes of one drawing, all of them words of the tables of this package."""

    style: str
    thing: str
    pattern: str
    colour: str
    ground: str
    size: str


def _choose(generator: np.random.Generator, options: tuple[str, ...]) -> str:
    return options[int(generator.integers(len(options)))]


def sample_scene(
    generator: np.random.Generator, style: str, thing: str | None = None, pattern: str | None = None
) -> Scene:
    """Returns a scene of the style whose other attributes are drawn uniformly.

    Args:
        generator: Source of randomness.
        style: Style of the drawing.
        thing: Name of the thing; drawn where None.
        pattern: Name of the pattern; drawn where None.
    """
    thing = thing or _choose(generator, tuple(THINGS))
    pattern = pattern or _choose(generator, PATTERNS)
    colour = _choose(generator, tuple(COLOURS))
    # A thing of nearly the colour of its ground could not be seen.
    visible = tuple(name for name, value in GROUNDS.items() if np.abs(np.subtract(value, COLOURS[colour])).sum() > 0.7)
    return Scene(style, thing, pattern, colour, _choose(generator, visible), _choose(generator, tuple(SIZES)))
