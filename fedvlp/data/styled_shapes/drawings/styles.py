"""The styles: each turns a placed thing into a picture."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from fedvlp.data.styled_shapes.drawings.canvas import (
    COLOURS,
    GROUNDS,
    SIDE,
    Canvas,
    Colour,
    Picture,
    Plane,
    Scene,
    blend,
    blur,
    noise,
    place,
)

_WHITE = np.array([0.98, 0.97, 0.94])
_BLACK = np.array([0.08, 0.07, 0.09])
_BOARDS = ((0.14, 0.24, 0.19), (0.13, 0.14, 0.16), (0.15, 0.2, 0.3))


def _near(value: tuple[float, float, float], generator: np.random.Generator, spread: float = 0.04) -> Colour:
    return np.asarray(np.clip(np.asarray(value) + generator.normal(0.0, spread, 3), 0.02, 0.98))


def _rgb_bytes(colour: Colour) -> tuple[int, ...]:
    return tuple(int(value) for value in np.clip(colour, 0, 1) * 255)


def _filled(canvas: Canvas, scene: Scene, ground: NDArray[np.float64], generator: np.random.Generator) -> Picture:
    """Returns the thing in its colours, without any shading, on the ground."""
    body = _near(COLOURS[scene.colour], generator)
    # The pattern must show: it is light on dark bodies and dark on light ones.
    light = body.mean() < 0.42 or (body.mean() < 0.6 and generator.random() < 0.6)
    over = (_WHITE if light else _BLACK) * 0.9 + 0.1 * body
    trim = _near(list(COLOURS.values())[int(generator.integers(len(COLOURS)))], generator)
    trim = 0.5 * trim + 0.5 * generator.uniform(0.3, 0.9)
    picture = np.broadcast_to(ground, (SIDE, SIDE, 3)).copy()
    picture = blend(picture, body + canvas.pattern[..., None] * (over - body), canvas.masks["body"])
    picture = blend(picture, trim, canvas.masks["trim"])
    return blend(picture, _BLACK + 0.1, np.minimum(1, canvas.masks["dark"] + canvas.masks["line"]))


def _lit(flat: Picture, ground: Picture, canvas: Canvas, light: float) -> Picture:
    """Returns a flat picture's thing, rounded by light from the left (-1) or right (1), on the ground."""
    height = 0.6 * blur(canvas.solid, 5.0) + 0.4 * blur(canvas.solid, 2.0)
    slope_y, slope_x = np.gradient(height)
    slope = 4.2 * (light * slope_x + 0.8 * slope_y)
    shade = 0.85 + slope * canvas.solid
    gloss = np.clip(slope - 0.28, 0, 1) * canvas.solid
    flat = flat.mean(axis=2, keepdims=True) * 0.22 + 0.78 * flat
    lit: Picture = blend(ground, flat * np.clip(shade, 0.25, 1.35)[..., None], canvas.solid)
    return lit + 1.2 * np.asarray(gloss)[..., None]


def _studio(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Lit from one side, with a cast shadow on a textured ground, a lens and a sensor."""
    far = _near(GROUNDS[scene.ground], generator)
    near = _near(GROUNDS[scene.ground], generator)
    horizon = generator.uniform(0.4, 0.85) * SIDE
    rows = 1 / (1 + np.exp((horizon - np.arange(SIDE)) / 1.5))
    ground = far + rows[:, None, None] * (0.78 * near - far)
    texture = np.asarray(sum(noise(generator, cells) / 3 for cells in (5, 13, 40))) - 0.5
    ground = ground * (1 + generator.uniform(0.3, 0.8) * texture[..., None])
    light = generator.choice([-1.0, 1.0]) * generator.uniform(0.5, 0.9)
    # The shadow falls to the side away from the light.
    shadow = np.roll(blur(canvas.solid, 3.0), (4, round(-7 * light)), axis=(0, 1))
    ground = blend(ground, ground * 0.35, 0.8 * shadow)
    picture = _lit(_filled(canvas, scene, ground, generator), ground, canvas, light)
    picture = np.stack([blur(picture[..., c], 0.55) for c in range(3)], axis=2)
    y, x = (np.mgrid[0:SIDE, 0:SIDE] - SIDE / 2) / SIDE
    picture *= (1 - 0.7 * (x**2 + y**2))[..., None] * generator.uniform(0.85, 1.15)
    return picture + generator.normal(0.0, 0.02, picture.shape)


def _photo(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """A snapshot in dim, coloured light: things out of focus behind, a hard shadow across, blur and grain."""
    ground = _near(GROUNDS[scene.ground], generator)
    ground = ground * (0.5 + noise(generator, 4) + 0.4 * noise(generator, 30) - 0.2)[..., None]
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    # Bright spots of four colours stand for things out of focus.
    for tint in np.asarray(generator.uniform(0.1, 0.9, (4, 3))):
        distance = np.hypot(y - generator.uniform(0, SIDE), x - generator.uniform(0, SIDE))
        ground = blend(ground, tint, 0.75 / (1 + np.exp(distance - generator.uniform(3, 9))))
    picture = _lit(_filled(canvas, scene, ground, generator), ground, canvas, generator.uniform(-0.9, 0.9))
    angle = generator.uniform(0, 2 * np.pi)
    offset = generator.uniform(-14, 14)
    shade = 1 / (1 + np.exp(-((x - 32) * np.cos(angle) + (y - 32) * np.sin(angle) - offset)))
    picture = picture * (1 - generator.uniform(0.2, 0.5) * shade)[..., None] * generator.uniform(0.7, 1.15, 3)
    picture = np.stack([blur(picture[..., c], generator.uniform(0.5, 0.9)) for c in range(3)], axis=2)
    return picture + generator.normal(0.0, 0.04, picture.shape)


def _painting(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Brush strokes of a limited palette that follow a slow field of directions."""
    ground = _near(GROUNDS[scene.ground], generator) * (0.8 + 0.4 * noise(generator, 4)[..., None])
    model = _filled(canvas, scene, ground, generator)
    warm = _near((0.85, 0.68, 0.4), generator)
    model = model * (0.75 + 0.35 * noise(generator, 3)[..., None]) * 0.85 + 0.15 * warm
    turn = np.pi * (generator.random() + 1.2 * noise(generator, 3))
    image = Image.new("RGB", (2 * SIDE, 2 * SIDE), _rgb_bytes(model.mean(axis=(0, 1))))
    brush = ImageDraw.Draw(image)
    inside = np.argwhere(canvas.solid > 0.5)
    # Broad strokes everywhere, narrower ones over them, and fine ones inside the thing.
    for spots, length, width in (
        (generator.integers(0, SIDE, (240, 2)), 8.0, 7),
        (generator.integers(0, SIDE, (80, 2)), 5.0, 4),
        (inside[generator.integers(0, len(inside), (2 * len(inside)) // 3)], 2.4, 3),
    ):
        tints = generator.normal(0.0, 0.05, (len(spots), 1)) + generator.normal(0.0, 0.03, (len(spots), 3))
        at = tuple(spots.T)
        middle = 2 * spots[:, ::-1] + 1  # x, y
        reach = length * np.stack([np.cos(turn[at]), np.sin(turn[at])], axis=1)
        ends = np.concatenate([middle - reach, middle + reach], axis=1)
        colours = (np.clip(model[at] + tints, 0, 1) * 255).astype(np.uint8)
        for end, colour in zip(ends.tolist(), colours.tolist(), strict=True):
            brush.line(end, fill=tuple(colour), width=width)
    painted = np.asarray(image.reduce(2), dtype=np.float64) / 255.0
    weave = 1 + 0.04 * generator.normal(0.0, 1.0, (SIDE, SIDE, 1))
    return painted * weave


def _sticker(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Flat bright colours, a thick black outline, and rays or dots behind."""
    base = _near(GROUNDS[scene.ground], generator)
    other = base * 0.85 + 0.15 * _WHITE if base.mean() < 0.5 else base * 0.88
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    kind = generator.integers(3)
    rays = np.sin(np.arctan2(y - generator.uniform(0, SIDE), x - generator.uniform(0, SIDE)) * 9) * 3 + 0.5
    dots = 3 * (np.sin(x * 1.05) * np.sin(y * 1.05)) - 0.6
    behind = np.clip([np.zeros((SIDE, SIDE)), rays, dots][kind], 0, 1)
    picture = _filled(canvas, scene, base + behind[..., None] * (other - base), generator)
    grey = picture.mean(axis=2, keepdims=True)
    picture = np.clip(grey + 1.25 * (picture - grey), 0, 1)
    return blend(picture, _BLACK * 0.5, canvas.stroke(generator, generator.uniform(1.9, 2.9)))


def _cartoon(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """A cheap comic print: black outline, colours printed beside it, dots for shade, rays behind."""
    base = _near(GROUNDS[scene.ground], generator)
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    angle = np.arctan2(y - generator.uniform(0, SIDE), x - generator.uniform(0, SIDE))
    rays = np.clip(4 * np.sin(angle * generator.integers(7, 15)) + 0.5, 0, 1)
    behind = blend(np.broadcast_to(base, (SIDE, SIDE, 3)), 0.85 * base + 0.15 * _WHITE * generator.random(), rays)
    picture = _filled(canvas, scene, behind, generator)
    # Colours are printed a little beside the outline.
    picture = np.roll(picture, generator.integers(-2, 3, 2), axis=(0, 1))
    step = generator.uniform(1.3, 1.7)
    dots = np.clip(3 * np.sin(step * (x + y) * 0.7) * np.sin(step * (x - y) * 0.7) + 0.2, 0, 1)
    picture = picture * (1 - 0.35 * dots * np.clip(2.4 * noise(generator, 3) - 0.8, 0, 1))[..., None]
    return blend(picture, _BLACK * 0.5, canvas.stroke(generator, generator.uniform(2.2, 3.4), 0.3))


def _hatching(generator: np.random.Generator, period: float) -> Plane:
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    angle = generator.uniform(0.5, 1.0)
    phase = (x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / period + 2.5 * noise(generator, 5)
    return np.asarray(np.clip(0.5 + 0.9 * np.sin(phase), 0, 1))


def _sketch(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Grey pencil on paper: shaky lines drawn over twice, the pattern and the dark parts hatched."""
    paper = _near((0.93, 0.92, 0.88), generator, 0.015) * (1 - 0.05 * noise(generator, 48)[..., None])
    grain = 0.65 + 0.35 * noise(generator, 40)
    lines = np.maximum(canvas.stroke(generator, 0.9, 0.45), 0.7 * canvas.stroke(generator, 0.7, 0.7))
    shade = canvas.masks["body"] * canvas.pattern * (0.5 + 0.5 * _hatching(generator, 2.6))
    shade = shade + canvas.masks["dark"] * 0.9 + 0.25 * canvas.masks["trim"] * _hatching(generator, 4.0)
    tone = generator.uniform(0.0, 0.5) * np.clip(1.6 * noise(generator, 3) - 0.5, 0, 1) * _hatching(generator, 3.0)
    lead = np.clip(np.maximum.reduce([lines, 0.75 * shade, tone]) * grain, 0, 1) * generator.uniform(0.6, 1.0)
    return blend(paper, np.full(3, generator.uniform(0.12, 0.35)), lead)


def _ink(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Solid black ink on white."""
    lines = canvas.stroke(generator, generator.uniform(1.0, 1.9), 0.25)
    cover = np.maximum.reduce([lines, canvas.masks["dark"], canvas.masks["body"] * canvas.pattern])
    return blend(np.broadcast_to(_WHITE, (SIDE, SIDE, 3)), _BLACK * generator.uniform(0.3, 1.5), cover)


def _chalk(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """White chalk on a dark board."""
    board = _near(_BOARDS[int(generator.integers(len(_BOARDS)))], generator, 0.02)
    dust = board * (0.85 + 0.45 * noise(generator, 6)[..., None])
    grain = np.clip(1.6 * generator.random((SIDE, SIDE)), 0.25, 1)
    fill = 0.75 * canvas.masks["body"] * canvas.pattern + 0.4 * canvas.masks["trim"] + 0.15 * canvas.masks["body"]
    cover = np.maximum(canvas.stroke(generator, 1.5, 0.5), fill) * grain
    return blend(dust, _WHITE, np.clip(cover, 0, 1))


def _poster(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Flat colours without any outline."""
    return _filled(canvas, scene, _near(GROUNDS[scene.ground], generator), generator)


def _watercolour(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Thin washes with dark rims on white paper."""
    wash = _near(GROUNDS[scene.ground], generator)
    paper = blend(np.broadcast_to(_WHITE, (SIDE, SIDE, 3)), wash, np.clip(1.5 * noise(generator, 4) - 0.1, 0, 1))
    picture = _filled(canvas, scene, paper, generator)
    soft = blur(canvas.solid, 1.2)
    rim = 4 * soft * (1 - soft)
    depth = np.clip(0.45 + 0.55 * noise(generator, 6) + 0.3 * rim, 0, 1) * soft
    return blend(paper, picture * (1 - 0.15 * rim[..., None]), depth)


def _neon(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Glowing tubes of one colour before a black wall."""
    wall = 0.08 * (0.5 + noise(generator, 9)[..., None]) * np.ones(3)
    tubes = np.maximum(canvas.stroke(generator, 1.2, 0.1), 0.8 * canvas.masks["body"] * canvas.pattern)
    glow = np.clip(tubes + 0.9 * blur(tubes, 2.5) + 0.5 * blur(tubes, 6.0), 0, 2)[..., None]
    tint = 0.2 + 0.95 * _near(COLOURS[scene.colour], generator)
    return wall + glow * tint + 0.25 * tubes[..., None]


_STYLES: dict[str, Callable[[Canvas, Scene, np.random.Generator], Picture]] = {
    "photo": _photo,
    "painting": _painting,
    "cartoon": _cartoon,
    "sketch": _sketch,
    "studio": _studio,
    "sticker": _sticker,
    "ink": _ink,
    "chalk": _chalk,
    "poster": _poster,
    "watercolour": _watercolour,
    "neon": _neon,
}
STYLES: tuple[str, ...] = tuple(_STYLES)
"""The names of all styles."""
COLOURLESS: frozenset[str] = frozenset({"sketch", "ink", "chalk"})
"""Styles that show no colour of the thing."""
GROUNDLESS: frozenset[str] = COLOURLESS | {"neon"}
"""Styles that show no ground."""


def draw(scene: Scene, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Returns the scene as an image of shape ``[64, 64, 3]``, red, green and blue in 0 to 255."""
    picture = _STYLES[scene.style](place(scene, generator), scene, generator)
    return np.round(np.clip(picture, 0, 1) * 255).astype(np.uint8)
