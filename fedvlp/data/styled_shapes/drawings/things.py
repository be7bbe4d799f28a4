"""Outlines of the things that are drawn: each function returns the shapes of one thing in a square from -1 to 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """One piece of a thing.

    Args:
        role: ``body`` (carries colour and pattern), ``trim`` (other colour), ``dark`` (details) or ``line`` (a stroke).
        points: Corners of shape ``[n, 2]``, x to the right and y down, in about -1 to 1.
    """

    role: str
    points: Points


def _ellipse(x: float, y: float, width: float, height: float, start: float = 0.0, stop: float = 360.0) -> Points:
    angle = np.radians(np.linspace(start, stop, 28))
    return np.stack([x + width * np.cos(angle), y + height * np.sin(angle)], axis=1)


def _polygon(*corners: tuple[float, float]) -> Points:
    return np.asarray(corners, dtype=np.float64)


def _smooth(*corners: tuple[float, float], steps: int = 6) -> Points:
    """Returns a closed Catmull-Rom curve through the corners."""
    points = np.asarray(corners, dtype=np.float64)
    t = np.linspace(0.0, 1.0, steps, endpoint=False)[None, :, None]
    # Each piece of the curve goes from p1 to p2; the corners before and after them give its directions.
    p0 = np.roll(points, 1, 0)[:, None]
    p1 = points[:, None]
    p2 = np.roll(points, -1, 0)[:, None]
    p3 = np.roll(points, -2, 0)[:, None]
    curve = p1 + 0.5 * t * (p2 - p0 + t * (2 * p0 - 5 * p1 + 4 * p2 - p3 + t * (3 * (p1 - p2) + p3 - p0)))
    return curve.reshape(-1, 2)


def _mirrored(*corners: tuple[float, float]) -> Points:
    """Returns the smooth closed outline whose right half is given from top to bottom."""
    return _smooth(*corners, *[(-x, y) for x, y in reversed(corners)])


def _balloon(generator: np.random.Generator) -> list[Shape]:
    width = generator.uniform(0.58, 0.72)
    string = np.linspace(0.58, 1.1, 10)
    wave = 0.1 * np.sin(7 * string + generator.uniform(0, 6))
    return [
        Shape("line", np.stack([wave - wave[0], string], axis=1)),
        Shape("trim", _polygon((0, 0.42), (0.14, 0.64), (-0.14, 0.64))),
        Shape("body", _mirrored((0.02, -1.0), (width * 0.8, -0.8), (width, -0.3), (width * 0.6, 0.25), (0.06, 0.5))),
    ]


def _bell(generator: np.random.Generator) -> list[Shape]:
    width = generator.uniform(0.74, 0.88)
    return [
        Shape("dark", _ellipse(0, 0.74, 0.2, 0.2)),
        Shape("line", _ellipse(0, -0.84, 0.15, 0.15)),
        Shape("body", _mirrored((0.08, -0.78), (0.42, -0.5), (0.5, 0.1), (width * 0.85, 0.45), (width * 0.8, 0.58))),
        Shape("trim", _polygon((-width, 0.5), (width, 0.5), (width, 0.72), (-width, 0.72))),
    ]


def _boat(generator: np.random.Generator) -> list[Shape]:
    peak = generator.uniform(-1.0, -0.85)
    lean = generator.uniform(0.68, 0.85)
    return [
        Shape("line", _polygon((0.0, -1.0), (0.0, 0.5))),
        Shape("body", _polygon((0.06, peak), (lean, 0.32), (0.06, 0.32))),
        Shape("body", _polygon((-0.06, peak + 0.22), (-0.06, 0.32), (-lean * 0.8, 0.32))),
        Shape("trim", _polygon((-0.92, 0.45), (0.95, 0.45), (0.62, 0.88), (-0.66, 0.88))),
    ]


def _butterfly(generator: np.random.Generator) -> list[Shape]:
    upper = generator.uniform(0.85, 1.0)
    lower = generator.uniform(0.6, 0.75)
    wings = []
    for side in (-1.0, 1.0):
        wings.append(_smooth((0, -0.1), (side * 0.45, -0.75), (side * upper, -0.72), (side * 0.8, -0.1), (0, 0.05)))
        wings.append(_smooth((0, 0.0), (side * 0.6, 0.05), (side * lower, 0.6), (side * 0.3, 0.75), (0, 0.2)))
    feelers = [Shape("line", _polygon((0, -0.5), (side * 0.12, -0.75), (side * 0.3, -0.92))) for side in (-1, 1)]
    return [*(Shape("body", wing) for wing in wings), *feelers, Shape("dark", _ellipse(0, 0, 0.1, 0.58))]


def _car(generator: np.random.Generator) -> list[Shape]:
    roof = generator.uniform(-0.62, -0.5)
    back = generator.uniform(-0.65, -0.45)
    side = [(-1, 0.35), (-0.95, -0.05), (back - 0.1, -0.12), (back + 0.1, roof), (0.3, roof), (0.6, -0.1), (0.98, 0.02)]
    return [
        Shape("body", _polygon(*side, (1.0, 0.38))),
        Shape("trim", _polygon((back + 0.05, -0.12), (back + 0.17, roof + 0.1), (-0.06, roof + 0.1), (-0.06, -0.12))),
        Shape("trim", _polygon((0.06, -0.12), (0.06, roof + 0.1), (0.26, roof + 0.1), (0.45, -0.12))),
        Shape("dark", _ellipse(-0.55, 0.4, 0.24, 0.24)),
        Shape("dark", _ellipse(0.55, 0.4, 0.24, 0.24)),
    ]


def _fish(generator: np.random.Generator) -> list[Shape]:
    tall = generator.uniform(0.5, 0.62)
    back = [(-1, 0.02), (-0.6, -tall * 0.8), (-0.1, -tall), (0.4, -tall * 0.5), (0.66, 0)]
    return [
        Shape("trim", _polygon((0.45, 0), (1.0, -0.5), (0.88, 0), (1.0, 0.5))),
        Shape("trim", _polygon((-0.3, -tall * 0.8), (0.05, -tall - 0.28), (0.3, -tall * 0.7))),
        Shape("body", _smooth(*back, (0.4, tall * 0.5), (-0.1, tall), (-0.6, tall * 0.8))),
        Shape("dark", _ellipse(-0.66, -0.12, 0.09, 0.09)),
    ]


def _hat(generator: np.random.Generator) -> list[Shape]:
    top = generator.uniform(-0.85, -0.6)
    width = generator.uniform(0.46, 0.58)
    left = [(-width, 0.48), (-width * 0.95, top * 0.6), (-width * 0.7, top), (0, top + 0.1)]
    return [
        Shape("trim", _ellipse(0, 0.5, 1.0, 0.24)),
        Shape("body", _smooth(*left, (width * 0.7, top), (width * 0.95, top * 0.6), (width, 0.48), (0, 0.6))),
        Shape("dark", _polygon((-width, 0.22), (width, 0.22), (width + 0.02, 0.42), (-width - 0.02, 0.42))),
    ]


def _heart(generator: np.random.Generator) -> list[Shape]:
    # The usual parametric heart curve, scaled into the square.
    t = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    width = generator.uniform(0.052, 0.06)
    x = 16 * np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return [Shape("body", np.stack([width * x, -0.056 * y - 0.12], axis=1))]


def _house(generator: np.random.Generator) -> list[Shape]:
    eaves = generator.uniform(-0.3, -0.1)
    door = generator.uniform(-0.4, 0.15)
    return [
        Shape("dark", _polygon((0.35, -0.85), (0.55, -0.85), (0.55, -0.3), (0.35, -0.3))),
        Shape("body", _polygon((-0.72, eaves), (0.72, eaves), (0.72, 0.85), (-0.72, 0.85))),
        Shape("trim", _polygon((-0.95, eaves), (0, -1.0), (0.95, eaves))),
        Shape("dark", _polygon((door, 0.3), (door + 0.28, 0.3), (door + 0.28, 0.85), (door, 0.85))),
    ]


def _kite(generator: np.random.Generator) -> list[Shape]:
    width = generator.uniform(0.58, 0.7)
    waist = generator.uniform(-0.42, -0.25)
    tail = np.linspace(0.45, 1.1, 12)
    wave = 0.14 * np.sin(9 * (tail - 0.45))
    return [
        Shape("line", np.stack([wave, tail], axis=1)),
        Shape("body", _polygon((0, -1.0), (width, waist), (0, 0.48), (-width, waist))),
        Shape("line", _polygon((0, -1.0), (0, 0.48))),
        Shape("line", _polygon((-width, waist), (width, waist))),
        Shape("trim", _polygon((-0.22, 0.62), (0.22, 0.84), (0.22, 0.62), (-0.22, 0.84))),
    ]


def _mug(generator: np.random.Generator) -> list[Shape]:
    width = generator.uniform(0.55, 0.66)
    top = generator.uniform(-0.75, -0.6)
    handle = np.concatenate([_ellipse(width, 0.05, 0.38, 0.42, -90, 90), _ellipse(width, 0.05, 0.2, 0.24, 90, -90)])
    return [
        Shape("trim", handle),
        Shape("body", _polygon((-width, top), (width, top), (width * 0.92, 0.8), (-width * 0.92, 0.8))),
        Shape("dark", _ellipse(0, top, width, 0.13)),
    ]


def _mushroom(generator: np.random.Generator) -> list[Shape]:
    cap = generator.uniform(0.85, 1.0)
    stem = generator.uniform(0.22, 0.32)
    dome = _ellipse(0, 0.1, cap, 0.95, 180, 360)
    return [
        Shape("trim", _polygon((-stem, 0.0), (stem, 0.0), (stem * 1.3, 0.9), (-stem * 1.3, 0.9))),
        Shape("body", np.concatenate([dome, _ellipse(0, 0.1, cap, 0.14, 0, 180)])),
    ]


def _shirt(generator: np.random.Generator) -> list[Shape]:
    sleeve = generator.uniform(0.0, 0.15)
    width = generator.uniform(0.5, 0.58)
    half = [(0.2, -0.8), (0.5, -0.72), (1.0, sleeve - 0.3), (0.78, sleeve), (width, -0.15), (width, 0.88)]
    return [
        Shape("body", _polygon(*half, *[(-x, y) for x, y in reversed(half)])),
        Shape("trim", _ellipse(0, -0.78, 0.24, 0.2, 0, 180)),
    ]


def _star(generator: np.random.Generator) -> list[Shape]:
    inner = generator.uniform(0.42, 0.5)
    angle = np.radians(np.arange(10) * 36 - 90)
    radius = np.where(np.arange(10) % 2 == 0, 1.0, inner)
    return [Shape("body", np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1))]


def _umbrella(generator: np.random.Generator) -> list[Shape]:
    tall = generator.uniform(0.72, 0.9)
    hook = _ellipse(0.16, 0.78, 0.16, 0.2, 180, 0)
    scallops = [_ellipse(x, 0.02, 0.32, -0.12, 0, 180) for x in (0.64, 0.0, -0.64)]
    return [
        Shape("line", np.concatenate([_polygon((0, -1.0), (0, 0.7)), hook])),
        Shape("body", np.concatenate([_ellipse(0, 0.02, 0.96, tall, 180, 360), *scallops])),
    ]


def _vase(generator: np.random.Generator) -> list[Shape]:
    belly = generator.uniform(0.58, 0.72)
    neck = generator.uniform(0.2, 0.28)
    right = [(neck + 0.1, -0.85), (neck, -0.5), (belly * 0.85, -0.15), (belly, 0.25), (belly * 0.7, 0.7), (0.34, 0.9)]
    return [Shape("body", _mirrored(*right)), Shape("dark", _ellipse(0, -0.86, neck + 0.1, 0.1))]


THINGS: dict[str, Callable[[np.random.Generator], list[Shape]]] = {
    "balloon": _balloon,
    "bell": _bell,
    "boat": _boat,
    "butterfly": _butterfly,
    "car": _car,
    "fish": _fish,
    "hat": _hat,
    "heart": _heart,
    "house": _house,
    "kite": _kite,
    "mug": _mug,
    "mushroom": _mushroom,
    "shirt": _shirt,
    "star": _star,
    "umbrella": _umbrella,
    "vase": _vase,
}
"""The things that can be drawn, by name; each takes a generator for the freedom of its outline."""
