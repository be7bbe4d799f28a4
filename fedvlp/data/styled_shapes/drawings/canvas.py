"""What a drawing shows, and the soft masks of shapes and strokes that drawings are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from fedvlp.data.styled_shapes.drawings.things import THINGS, Shape

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


Plane = NDArray[np.float64]
"""Values in 0 to 1 of shape ``[64, 64]``."""
Picture = NDArray[np.float64]
"""Red, green and blue in 0 to 1 of shape ``[64, 64, 3]``."""

SIDE = 64
"""Height and width of a drawing in pixels."""
_FINE = 4
_ROLES = ("body", "trim", "dark", "line")


@dataclass(frozen=True)
class Canvas:
    """A thing put in place on an empty drawing.

    Args:
        shapes: Its shapes, in pixels of the drawing.
        masks: Coverage of each role, after later shapes have hidden earlier ones.
        solid: Coverage of the whole thing.
        pattern: Strength of the pattern at each pixel, whether or not the body covers it.
    """

    shapes: tuple[Shape, ...]
    masks: dict[str, Plane]
    solid: Plane
    pattern: Plane

    def stroke(self, generator: np.random.Generator, width: float, wobble: float = 0.0) -> Plane:
        """Returns the coverage of all outlines drawn once with a pen.

        Args:
            generator: Source of randomness of the wobble.
            width: Width of the pen in pixels.
            wobble: Standard deviation of the hand's slow drift in pixels.
        """
        image = Image.new("L", (SIDE * _FINE, SIDE * _FINE))
        pen = ImageDraw.Draw(image)
        for shape in self.shapes:
            is_open = shape.role == "line"
            points = shape.points if is_open else np.concatenate([shape.points, shape.points[:1]])
            # The hand drifts off for four points at a time.
            drift = np.repeat(generator.normal(0.0, wobble, (len(points) // 4 + 1, 2)), 4, axis=0)[: len(points)]
            steps = ((points + 0.5 * drift + generator.normal(0.0, wobble, 2)) * _FINE).ravel().tolist()
            pen.line(steps, fill=255, width=max(1, round(width * _FINE)), joint="curve")
        return _reduced(image)


def _reduced(image: Image.Image) -> Plane:
    return np.asarray(image.reduce(_FINE), dtype=np.float64) / 255.0


def _coverage(shapes: tuple[Shape, ...]) -> dict[str, Plane]:
    """Returns the coverage of each role; drawn finely and counted, so that edges are smooth."""
    image = Image.new("L", (SIDE * _FINE, SIDE * _FINE))
    pen = ImageDraw.Draw(image)
    for shape in shapes:
        points = (shape.points * _FINE).ravel().tolist()
        label = 1 + _ROLES.index(shape.role)
        if shape.role == "line":
            pen.line(points, fill=label, width=round(1.6 * _FINE), joint="curve")
        else:
            pen.polygon(points, fill=label)
    labels = np.asarray(image)
    return {role: _counted(labels == 1 + index) / _FINE**2 for index, role in enumerate(_ROLES)}


def _counted(fine: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Returns how many fine pixels are true in each pixel."""
    rows = fine.reshape(SIDE, _FINE, SIDE * _FINE).sum(axis=1, dtype=np.uint8)
    return np.asarray(rows.reshape(SIDE, SIDE, _FINE).sum(axis=2, dtype=np.uint8))


def _pattern(name: str, u: Plane, v: Plane, generator: np.random.Generator) -> Plane:
    """Returns the strength of a pattern, turned and shifted by chance.

    Args:
        name: one of ``PATTERNS``.
        u: how far right each pixel lies in the square of the thing, in about -1 to 1.
        v: how far down.
        generator: Source of randomness.
    """
    angle = float(generator.choice([0.0, 0.5, 0.25, 0.75])) * np.pi + generator.normal(0.0, 0.08)
    across = u * np.cos(angle) + v * np.sin(angle) + generator.uniform(0, 1)
    along = v * np.cos(angle) - u * np.sin(angle) + generator.uniform(0, 1)
    if name == "striped":
        return np.asarray(np.clip(0.5 + 2.0 * np.sin(2 * np.pi * across / generator.uniform(0.42, 0.54)), 0, 1))
    if name == "spotted":
        period = generator.uniform(0.48, 0.58)
        row = np.floor(along / (0.87 * period))
        x = np.mod(across / period + 0.5 * np.mod(row, 2), 1) - 0.5
        y = (np.mod(along / (0.87 * period), 1) - 0.5) * 0.87
        return np.asarray(np.clip(0.5 + 6.0 * (generator.uniform(0.27, 0.33) - np.hypot(x, y)), 0, 1))
    if name == "checked":
        step = 2 * np.pi / generator.uniform(0.62, 0.76)
        return np.asarray(np.clip(0.5 + 3.0 * np.sin(step * across) * np.sin(step * along), 0, 1))
    return np.zeros_like(u)


def place(scene: Scene, generator: np.random.Generator) -> Canvas:
    """Returns the scene's thing at a random place, turned a little and mirrored by chance."""
    half = generator.uniform(*SIZES[scene.size])
    angle = generator.normal(0.0, 0.16)
    centre = SIDE / 2 + generator.uniform(-1.0, 1.0, 2) * 0.6 * (30.0 - half)
    mirror = np.array([generator.choice([-1.0, 1.0]), 1.0])
    turn = half * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    outlines = THINGS[scene.thing](generator)
    shapes = tuple(Shape(each.role, (each.points * mirror) @ turn.T + centre) for each in outlines)
    masks = _coverage(shapes)
    # The pattern turns with the thing, so it is drawn in the coordinates of the thing.
    y, x = np.mgrid[0:SIDE, 0:SIDE] + 0.5
    u, v = np.einsum("ij,jyx->iyx", np.linalg.inv(turn), np.stack([x - centre[0], y - centre[1]]))
    solid = np.minimum(1.0, sum(masks.values(), np.zeros_like(u)))
    return Canvas(shapes, masks, solid, _pattern(scene.pattern, u, v, generator))


def blur(plane: Plane, radius: float) -> Plane:
    """Returns the plane, clipped to 0 to 1, after a Gaussian blur of the radius in pixels."""
    image = Image.fromarray((np.clip(plane, 0, 1) * 255).astype(np.uint8))
    return np.asarray(image.filter(ImageFilter.GaussianBlur(radius)), dtype=np.float64) / 255.0


def noise(generator: np.random.Generator, cells: int) -> Plane:
    """Returns smooth noise in 0 to 1 with about that many bumps a side."""
    coarse = Image.fromarray(generator.random((cells + 1, cells + 1), dtype=np.float32))
    return np.clip(np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC), dtype=np.float64), 0, 1)


def blend(below: Picture, above: NDArray[np.float64], cover: Plane) -> Picture:
    """Returns the picture with a colour or picture laid over it where the cover is 1."""
    return below + cover[..., None] * (above - below)
