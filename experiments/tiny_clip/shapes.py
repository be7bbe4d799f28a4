"""StyledShapes, the data set for the tiny CLIP: outlines of things on a canvas, in four styles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from fedvlp.data import ArrayImages, FederatedDataModule, Images

SIDE = 64
"""Height and width of a drawing in pixels."""
FINE = 4
"""Oversampling factor of masks, for smooth edges."""

Points = NDArray[np.float64]
"""Corners of shape ``[n, 2]``, x to the right and y down."""
Plane = NDArray[np.float64]
"""Values in 0 to 1 of shape ``[64, 64]``."""
Picture = NDArray[np.float64]
"""Red, green and blue in 0 to 1 of shape ``[64, 64, 3]``."""

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
"""Grounds of things, with their colours."""
PATTERNS: tuple[str, ...] = ("plain", "striped", "spotted", "checked")
"""Patterns on the body of a thing."""
SIZES: dict[str, tuple[float, float]] = {"small": (17.0, 20.0), "large": (23.0, 27.0)}
"""Half the width of a thing, in pixels of a drawing of 64 x 64 pixels."""
ROLES = ("body", "trim", "dark", "line")
"""Roles of the pieces of a thing, in the order of their numbers in a mask."""
WHITE = np.array([0.98, 0.97, 0.94])
BLACK = np.array([0.08, 0.07, 0.09])


@dataclass(frozen=True)
class Scene:
    """The attributes of one drawing, each a key of a table in this file."""

    style: str
    thing: str
    pattern: str
    colour: str
    ground: str
    size: str


@dataclass(frozen=True)
class Shape:
    """One piece of a thing.

    Args:
        role: ``body`` (carries colour and pattern), ``trim`` (other colour), ``dark`` (details) or ``line`` (a stroke).
        points: Corners of shape ``[n, 2]``, x to the right and y down, in about -1 to 1.
    """

    role: str
    points: Points


Outline = Callable[[np.random.Generator], list[Shape]]


def ellipse(x: float, y: float, width: float, height: float, start: float = 0.0, stop: float = 360.0) -> Points:
    """Make an ellipse around (x, y), or its arc between two angles in degrees; angles grow clockwise."""
    angle = np.radians(np.linspace(start, stop, 28))
    return np.stack([x + width * np.cos(angle), y + height * np.sin(angle)], axis=1)


def polygon(*corners: tuple[float, float]) -> Points:
    """Make an array of corners."""
    return np.asarray(corners, dtype=np.float64)


def smooth(*corners: tuple[float, float], steps: int = 6) -> Points:
    """Make a closed Catmull-Rom curve through the corners."""
    points = np.asarray(corners, dtype=np.float64)
    t = np.linspace(0.0, 1.0, steps, endpoint=False)[None, :, None]
    # Each piece of the curve goes from p1 to p2; the corners before and after determine its directions.
    p0 = np.roll(points, 1, 0)[:, None]
    p1 = points[:, None]
    p2 = np.roll(points, -1, 0)[:, None]
    p3 = np.roll(points, -2, 0)[:, None]
    curve = p1 + 0.5 * t * (p2 - p0 + t * (2 * p0 - 5 * p1 + 4 * p2 - p3 + t * (3 * (p1 - p2) + p3 - p0)))
    return curve.reshape(-1, 2)


def mirrored(*corners: tuple[float, float]) -> Points:
    """Make a smooth closed outline from its right half, given from top to bottom."""
    return smooth(*corners, *[(-x, y) for x, y in reversed(corners)])


def _balloon(generator: np.random.Generator) -> list[Shape]:
    width = generator.uniform(0.58, 0.72)
    string = np.linspace(0.58, 1.1, 10)
    wave = 0.1 * np.sin(7 * string + generator.uniform(0, 6))
    return [
        Shape("line", np.stack([wave - wave[0], string], axis=1)),
        Shape("trim", polygon((0, 0.42), (0.14, 0.64), (-0.14, 0.64))),
        Shape("body", mirrored((0.02, -1.0), (width * 0.8, -0.8), (width, -0.3), (width * 0.6, 0.25), (0.06, 0.5))),
    ]


def _boat(generator: np.random.Generator) -> list[Shape]:
    peak = generator.uniform(-1.0, -0.85)
    lean = generator.uniform(0.68, 0.85)
    return [
        Shape("line", polygon((0.0, -1.0), (0.0, 0.5))),
        Shape("body", polygon((0.06, peak), (lean, 0.32), (0.06, 0.32))),
        Shape("body", polygon((-0.06, peak + 0.22), (-0.06, 0.32), (-lean * 0.8, 0.32))),
        Shape("trim", polygon((-0.92, 0.45), (0.95, 0.45), (0.62, 0.88), (-0.66, 0.88))),
    ]


def _car(generator: np.random.Generator) -> list[Shape]:
    roof = generator.uniform(-0.62, -0.5)
    back = generator.uniform(-0.65, -0.45)
    side = [(-1, 0.35), (-0.95, -0.05), (back - 0.1, -0.12), (back + 0.1, roof), (0.3, roof), (0.6, -0.1), (0.98, 0.02)]
    return [
        Shape("body", polygon(*side, (1.0, 0.38))),
        Shape("trim", polygon((back + 0.05, -0.12), (back + 0.17, roof + 0.1), (-0.06, roof + 0.1), (-0.06, -0.12))),
        Shape("trim", polygon((0.06, -0.12), (0.06, roof + 0.1), (0.26, roof + 0.1), (0.45, -0.12))),
        Shape("dark", ellipse(-0.55, 0.4, 0.24, 0.24)),
        Shape("dark", ellipse(0.55, 0.4, 0.24, 0.24)),
    ]


def _fish(generator: np.random.Generator) -> list[Shape]:
    tall = generator.uniform(0.5, 0.62)
    back = [(-1, 0.02), (-0.6, -tall * 0.8), (-0.1, -tall), (0.4, -tall * 0.5), (0.66, 0)]
    return [
        Shape("trim", polygon((0.45, 0), (1.0, -0.5), (0.88, 0), (1.0, 0.5))),
        Shape("trim", polygon((-0.3, -tall * 0.8), (0.05, -tall - 0.28), (0.3, -tall * 0.7))),
        Shape("body", smooth(*back, (0.4, tall * 0.5), (-0.1, tall), (-0.6, tall * 0.8))),
        Shape("dark", ellipse(-0.66, -0.12, 0.09, 0.09)),
    ]


def _hat(generator: np.random.Generator) -> list[Shape]:
    top = generator.uniform(-0.85, -0.6)
    width = generator.uniform(0.46, 0.58)
    left = [(-width, 0.48), (-width * 0.95, top * 0.6), (-width * 0.7, top), (0, top + 0.1)]
    return [
        Shape("trim", ellipse(0, 0.5, 1.0, 0.24)),
        Shape("body", smooth(*left, (width * 0.7, top), (width * 0.95, top * 0.6), (width, 0.48), (0, 0.6))),
        Shape("dark", polygon((-width, 0.22), (width, 0.22), (width + 0.02, 0.42), (-width - 0.02, 0.42))),
    ]


def _mug(generator: np.random.Generator) -> list[Shape]:
    width = generator.uniform(0.55, 0.66)
    top = generator.uniform(-0.75, -0.6)
    handle = np.concatenate([ellipse(width, 0.05, 0.38, 0.42, -90, 90), ellipse(width, 0.05, 0.2, 0.24, 90, -90)])
    return [
        Shape("trim", handle),
        Shape("body", polygon((-width, top), (width, top), (width * 0.92, 0.8), (-width * 0.92, 0.8))),
        Shape("dark", ellipse(0, top, width, 0.13)),
    ]


THINGS: dict[str, Outline] = {
    "balloon": _balloon,
    "boat": _boat,
    "car": _car,
    "fish": _fish,
    "hat": _hat,
    "mug": _mug,
}
"""The things of the benchmark, by name; each uses a generator to vary its outline."""


@dataclass(frozen=True)
class Canvas:
    """A thing placed on an empty drawing.

    Args:
        shapes: Its shapes, in pixels of the drawing.
        masks: Coverage of each role, without parts hidden by later shapes.
        solid: Coverage of the whole thing.
        pattern: Strength of the pattern at each pixel, also outside of the body.
    """

    shapes: tuple[Shape, ...]
    masks: dict[str, Plane]
    solid: Plane
    pattern: Plane

    def stroke(self, generator: np.random.Generator, width: float, wobble: float = 0.0) -> Plane:
        """Compute the coverage of all outlines, drawn with a pen of a width and a slow drift in pixels."""
        image = Image.new("L", (SIDE * FINE, SIDE * FINE))
        pen = ImageDraw.Draw(image)
        for shape in self.shapes:
            is_open = shape.role == "line"
            points = shape.points if is_open else np.concatenate([shape.points, shape.points[:1]])
            # The hand drifts for four points at a time.
            drift = np.repeat(generator.normal(0.0, wobble, (len(points) // 4 + 1, 2)), 4, axis=0)[: len(points)]
            steps = ((points + 0.5 * drift + generator.normal(0.0, wobble, 2)) * FINE).ravel().tolist()
            pen.line(steps, fill=255, width=max(1, round(width * FINE)), joint="curve")
        return np.asarray(image.reduce(FINE), dtype=np.float64) / 255.0


def _coverage(shapes: tuple[Shape, ...]) -> dict[str, Plane]:
    """Compute the coverage of each role by oversampling, for smooth edges."""
    image = Image.new("L", (SIDE * FINE, SIDE * FINE))
    pen = ImageDraw.Draw(image)
    for shape in shapes:
        points = (shape.points * FINE).ravel().tolist()
        # Later shapes overwrite the numbers of earlier ones, like paint.
        label = 1 + ROLES.index(shape.role)
        if shape.role == "line":
            pen.line(points, fill=label, width=round(1.6 * FINE), joint="curve")
        else:
            pen.polygon(points, fill=label)
    # One axis for pixel rows, one for the fine rows in each, and the same for columns.
    labels = np.asarray(image).reshape(SIDE, FINE, SIDE, FINE)
    return {role: (labels == 1 + index).sum(axis=(1, 3)) / FINE**2 for index, role in enumerate(ROLES)}


def _pattern(name: str, u: Plane, v: Plane, generator: np.random.Generator) -> Plane:
    """Compute the strength of a pattern with random rotation and shift.

    Each pixel is ``u`` to the right and ``v`` down in the square of the thing, in about -1 to 1.
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


def place(scene: Scene, outline: Outline, generator: np.random.Generator) -> Canvas:
    """Place the scene's thing at a random position, slightly rotated and perhaps mirrored."""
    half = generator.uniform(*SIZES[scene.size])
    angle = generator.normal(0.0, 0.16)
    centre = SIDE / 2 + generator.uniform(-1.0, 1.0, 2) * 0.6 * (30.0 - half)
    mirror = np.array([generator.choice([-1.0, 1.0]), 1.0])
    turn = half * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    shapes = tuple(Shape(each.role, (each.points * mirror) @ turn.T + centre) for each in outline(generator))
    masks = _coverage(shapes)
    # The pattern rotates with the thing, so it is drawn in the coordinates of the thing.
    y, x = np.mgrid[0:SIDE, 0:SIDE] + 0.5
    u, v = np.einsum("ij,jyx->iyx", np.linalg.inv(turn), np.stack([x - centre[0], y - centre[1]]))
    solid = np.minimum(1.0, sum(masks.values(), np.zeros_like(u)))
    return Canvas(shapes, masks, solid, _pattern(scene.pattern, u, v, generator))


def blur(plane: Plane, radius: float) -> Plane:
    """Clip the plane to 0 to 1 after a Gaussian blur of the radius in pixels."""
    image = Image.fromarray((np.clip(plane, 0, 1) * 255).astype(np.uint8))
    return np.asarray(image.filter(ImageFilter.GaussianBlur(radius)), dtype=np.float64) / 255.0


def noise(generator: np.random.Generator, cells: int) -> Plane:
    """Make smooth noise in 0 to 1 with about this many bumps per side."""
    coarse = Image.fromarray(generator.random((cells + 1, cells + 1), dtype=np.float32))
    return np.clip(np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC), dtype=np.float64), 0, 1)


def blend(below: Picture, above: NDArray[np.float64], cover: Plane) -> Picture:
    """Lay a colour or picture over a picture where the cover is 1."""
    return below + cover[..., None] * (above - below)


def vary(value: Sequence[float], generator: np.random.Generator, spread: float = 0.04) -> NDArray[np.float64]:
    """Vary a colour slightly, so that no two drawings have equal colours."""
    return np.asarray(np.clip(np.asarray(value) + generator.normal(0.0, spread, 3), 0.02, 0.98))


def filled(canvas: Canvas, scene: Scene, ground: NDArray[np.float64], generator: np.random.Generator) -> Picture:
    """Draw the thing in its colours, without shading, on the ground."""
    body = vary(COLOURS[scene.colour], generator)
    # For contrast, the pattern is light on dark bodies and dark on light ones.
    light = body.mean() < 0.42 or (body.mean() < 0.6 and generator.random() < 0.6)
    over = (WHITE if light else BLACK) * 0.9 + 0.1 * body
    trim = vary(list(COLOURS.values())[int(generator.integers(len(COLOURS)))], generator)
    trim = 0.5 * trim + 0.5 * generator.uniform(0.3, 0.9)
    picture = np.broadcast_to(ground, (SIDE, SIDE, 3)).copy()
    picture = blend(picture, body + canvas.pattern[..., None] * (over - body), canvas.masks["body"])
    picture = blend(picture, trim, canvas.masks["trim"])
    return blend(picture, BLACK + 0.1, np.minimum(1, canvas.masks["dark"] + canvas.masks["line"]))


def shaded(flat: Picture, ground: Picture, canvas: Canvas, light: float) -> Picture:
    """Shade a flat picture's thing with light from the left (-1) or right (1), on the ground."""
    # The blurred silhouette is a height field, highest in the middle of the thing; its slope determines the shade.
    height = 0.6 * blur(canvas.solid, 5.0) + 0.4 * blur(canvas.solid, 2.0)
    slope_y, slope_x = np.gradient(height)
    slope = 4.2 * (light * slope_x + 0.8 * slope_y)
    shade = 0.85 + slope * canvas.solid
    gloss = np.clip(slope - 0.28, 0, 1) * canvas.solid
    flat = flat.mean(axis=2, keepdims=True) * 0.22 + 0.78 * flat
    picture: Picture = blend(ground, flat * np.clip(shade, 0.25, 1.35)[..., None], canvas.solid)
    return picture + 1.2 * np.asarray(gloss)[..., None]


def _photo(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Draw a snapshot in dim, coloured light, with a blurred background, a hard shadow, blur and grain."""
    ground = vary(GROUNDS[scene.ground], generator)
    ground = ground * (0.5 + noise(generator, 4) + 0.4 * noise(generator, 30) - 0.2)[..., None]
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    # Bright spots of four colours represent things out of focus.
    for tint in np.asarray(generator.uniform(0.1, 0.9, (4, 3))):
        distance = np.hypot(y - generator.uniform(0, SIDE), x - generator.uniform(0, SIDE))
        ground = blend(ground, tint, 0.75 / (1 + np.exp(distance - generator.uniform(3, 9))))
    picture = shaded(filled(canvas, scene, ground, generator), ground, canvas, generator.uniform(-0.9, 0.9))
    angle = generator.uniform(0, 2 * np.pi)
    offset = generator.uniform(-14, 14)
    shade = 1 / (1 + np.exp(-((x - 32) * np.cos(angle) + (y - 32) * np.sin(angle) - offset)))
    picture = picture * (1 - generator.uniform(0.2, 0.5) * shade)[..., None] * generator.uniform(0.7, 1.15, 3)
    picture = np.stack([blur(picture[..., c], generator.uniform(0.5, 0.9)) for c in range(3)], axis=2)
    return picture + generator.normal(0.0, 0.04, picture.shape)


def _painting(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Draw brush strokes of a limited palette that follow a slow field of directions."""
    ground = vary(GROUNDS[scene.ground], generator) * (0.8 + 0.4 * noise(generator, 4)[..., None])
    model = filled(canvas, scene, ground, generator)
    # Tint all colours with one warm tone, as if mixed from few paints.
    warm = vary((0.85, 0.68, 0.4), generator)
    model = model * (0.75 + 0.35 * noise(generator, 3)[..., None]) * 0.85 + 0.15 * warm
    # Direction of the strokes at each pixel, which changes slowly over the picture.
    turn = np.pi * (generator.random() + 1.2 * noise(generator, 3))
    under = np.clip(model.mean(axis=(0, 1)), 0, 1) * 255
    # Paint at twice the size and reduce, which softens the edges of strokes.
    image = Image.new("RGB", (2 * SIDE, 2 * SIDE), tuple(int(value) for value in under))
    brush = ImageDraw.Draw(image)
    inside = np.argwhere(canvas.solid > 0.5)
    # Broad strokes everywhere, then narrower ones, and fine ones inside the thing.
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


def _cartoon(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Draw a cheap comic print: black outline, misaligned colours, dots for shade, rays behind."""
    base = vary(GROUNDS[scene.ground], generator)
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    angle = np.arctan2(y - generator.uniform(0, SIDE), x - generator.uniform(0, SIDE))
    # A random number of rays from a point behind the thing.
    rays = np.clip(4 * np.sin(angle * generator.integers(7, 15)) + 0.5, 0, 1)
    behind = blend(np.broadcast_to(base, (SIDE, SIDE, 3)), 0.85 * base + 0.15 * WHITE * generator.random(), rays)
    picture = filled(canvas, scene, behind, generator)
    # Print colours slightly beside the outline.
    picture = np.roll(picture, generator.integers(-2, 3, 2), axis=(0, 1))
    step = generator.uniform(1.3, 1.7)
    dots = np.clip(3 * np.sin(step * (x + y) * 0.7) * np.sin(step * (x - y) * 0.7) + 0.2, 0, 1)
    picture = picture * (1 - 0.35 * dots * np.clip(2.4 * noise(generator, 3) - 0.8, 0, 1))[..., None]
    return blend(picture, BLACK * 0.5, canvas.stroke(generator, generator.uniform(2.2, 3.4), 0.3))


def _hatching(generator: np.random.Generator, period: float) -> Plane:
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    angle = generator.uniform(0.5, 1.0)
    phase = (x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / period + 2.5 * noise(generator, 5)
    return np.asarray(np.clip(0.5 + 0.9 * np.sin(phase), 0, 1))


def _sketch(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Draw a grey pencil sketch: shaky double lines, with hatched pattern and dark parts."""
    paper = vary((0.93, 0.92, 0.88), generator, 0.015) * (1 - 0.05 * noise(generator, 48)[..., None])
    grain = 0.65 + 0.35 * noise(generator, 40)
    lines = np.maximum(canvas.stroke(generator, 0.9, 0.45), 0.7 * canvas.stroke(generator, 0.7, 0.7))
    shade = canvas.masks["body"] * canvas.pattern * (0.5 + 0.5 * _hatching(generator, 2.6))
    shade = shade + canvas.masks["dark"] * 0.9 + 0.25 * canvas.masks["trim"] * _hatching(generator, 4.0)
    tone = generator.uniform(0.0, 0.5) * np.clip(1.6 * noise(generator, 3) - 0.5, 0, 1) * _hatching(generator, 3.0)
    lead = np.clip(np.maximum.reduce([lines, 0.75 * shade, tone]) * grain, 0, 1) * generator.uniform(0.6, 1.0)
    return blend(paper, np.full(3, generator.uniform(0.12, 0.35)), lead)


Style = Callable[[Canvas, Scene, np.random.Generator], Picture]
# The seeds of images depend on their order, and on the order of PATTERNS.
STYLES: dict[str, Style] = {
    "photo": _photo,
    "painting": _painting,
    "cartoon": _cartoon,
    "sketch": _sketch,
}


def sample_scene(generator: np.random.Generator, style: str, thing: str, pattern: str) -> Scene:
    """Draw a scene of a style, a thing and a pattern with uniform colour, ground and size."""
    colour = choose(generator, tuple(COLOURS))
    # A thing with nearly the colour of its ground would be invisible.
    visible = tuple(name for name, value in GROUNDS.items() if np.abs(np.subtract(value, COLOURS[colour])).sum() > 0.7)
    return Scene(style, thing, pattern, colour, choose(generator, visible), choose(generator, tuple(SIZES)))


def choose(generator: np.random.Generator, options: tuple[str, ...]) -> str:
    """Draw one of the options uniformly."""
    return options[int(generator.integers(len(options)))]


def draw(
    scene: Scene,
    generator: np.random.Generator,
    things: Mapping[str, Outline] = THINGS,
    styles: Mapping[str, Style] = STYLES,
) -> NDArray[np.uint8]:
    """Draw the scene as an image of shape ``[64, 64, 3]``, red, green and blue in 0 to 255.

    ``things`` and ``styles`` must contain its thing and its style.
    """
    canvas = place(scene, things[scene.thing], generator)
    picture = styles[scene.style](canvas, scene, generator)
    return np.round(np.clip(picture, 0, 1) * 255).astype(np.uint8)


_NOUNS = {
    "balloon": ("balloon", 0),
    "yacht": ("boat", 2),
    "taxi": ("car", 4),
    "fish": ("fish", 5),
    "cap": ("hat", 6),
    "cup": ("mug", 10),
}
"""Thing for each noun of a class name, and its number in the seeds of its images."""
_ADJECTIVES = {"banded": "striped", "spotted": "spotted", "tartan": "checked"}
"""Pattern for each adjective of a class name."""
CLASS_NAMES = tuple(f"{adjective} {noun}" for noun, adjective in itertools.product(_NOUNS, _ADJECTIVES))


def styled_shape(seed: int, domain: str, class_name: str, index: int) -> NDArray[np.uint8]:
    """Draw one image of shape ``[64, 64, 3]``, determined by these arguments.

    ``index`` is its number among the images of the class in the style.
    """
    adjective, noun = class_name.split(" ")
    thing, number = _NOUNS[noun]
    pattern = _ADJECTIVES[adjective]
    # The 2 separates these drawings from the tiny CLIP's training drawings, whose seeds have a 1 there.
    numbers = [2, tuple(STYLES).index(domain), number, PATTERNS.index(pattern)]
    generator = np.random.default_rng([seed, *numbers, index])
    return draw(sample_scene(generator, domain, thing, pattern), generator)


def styled_shapes(seed: int = 0, images_per_class: int = 20) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Draw the images of each style, ``[N, 64, 64, 3]``, with labels ``[N]`` in the order of CLASS_NAMES.

    Equal seeds give equal images (0 for the benchmark); larger classes start with the same images.
    """
    numbered = list(itertools.product(CLASS_NAMES, range(images_per_class)))
    domains = {}
    for domain in STYLES:
        images = np.stack([styled_shape(seed, domain, name, index) for name, index in numbered])
        domains[domain] = (images, np.repeat(np.arange(len(CLASS_NAMES)), images_per_class))
    return domains


class StyledShapes(FederatedDataModule):
    """Objects drawn in four styles, each a domain; every process draws them in 8 seconds."""

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """Draw the images of each style."""
        domains: dict[str, Images] = {}
        for domain, (images, labels) in sorted(styled_shapes().items()):
            names = [f"{domain}/{CLASS_NAMES[label]}/{row:05d}" for row, label in enumerate(labels)]
            domains[domain] = ArrayImages(images, labels, names)
        return domains, list(CLASS_NAMES)
