"""Captioned drawings for pretraining, with more things and styles than StyledShapes, drawn by the same code."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from experiments.tiny_clip import shapes
from experiments.tiny_clip.shapes import (
    BLACK,
    COLOURS,
    GROUNDS,
    PATTERNS,
    SIDE,
    SIZES,
    WHITE,
    Canvas,
    Outline,
    Picture,
    Scene,
    Shape,
    Style,
    blend,
    blur,
    choose,
    ellipse,
    filled,
    mirrored,
    noise,
    polygon,
    shaded,
    smooth,
    vary,
)


def _bell(generator: np.random.Generator) -> list[Shape]:
    width = generator.uniform(0.74, 0.88)
    return [
        Shape("dark", ellipse(0, 0.74, 0.2, 0.2)),
        Shape("line", ellipse(0, -0.84, 0.15, 0.15)),
        Shape("body", mirrored((0.08, -0.78), (0.42, -0.5), (0.5, 0.1), (width * 0.85, 0.45), (width * 0.8, 0.58))),
        Shape("trim", polygon((-width, 0.5), (width, 0.5), (width, 0.72), (-width, 0.72))),
    ]


def _butterfly(generator: np.random.Generator) -> list[Shape]:
    upper = generator.uniform(0.85, 1.0)
    lower = generator.uniform(0.6, 0.75)
    wings = []
    for side in (-1.0, 1.0):
        wings.append(smooth((0, -0.1), (side * 0.45, -0.75), (side * upper, -0.72), (side * 0.8, -0.1), (0, 0.05)))
        wings.append(smooth((0, 0.0), (side * 0.6, 0.05), (side * lower, 0.6), (side * 0.3, 0.75), (0, 0.2)))
    feelers = [Shape("line", polygon((0, -0.5), (side * 0.12, -0.75), (side * 0.3, -0.92))) for side in (-1, 1)]
    return [*(Shape("body", wing) for wing in wings), *feelers, Shape("dark", ellipse(0, 0, 0.1, 0.58))]


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
        Shape("dark", polygon((0.35, -0.85), (0.55, -0.85), (0.55, -0.3), (0.35, -0.3))),
        Shape("body", polygon((-0.72, eaves), (0.72, eaves), (0.72, 0.85), (-0.72, 0.85))),
        Shape("trim", polygon((-0.95, eaves), (0, -1.0), (0.95, eaves))),
        Shape("dark", polygon((door, 0.3), (door + 0.28, 0.3), (door + 0.28, 0.85), (door, 0.85))),
    ]


def _kite(generator: np.random.Generator) -> list[Shape]:
    width = generator.uniform(0.58, 0.7)
    waist = generator.uniform(-0.42, -0.25)
    tail = np.linspace(0.45, 1.1, 12)
    wave = 0.14 * np.sin(9 * (tail - 0.45))
    return [
        Shape("line", np.stack([wave, tail], axis=1)),
        Shape("body", polygon((0, -1.0), (width, waist), (0, 0.48), (-width, waist))),
        Shape("line", polygon((0, -1.0), (0, 0.48))),
        Shape("line", polygon((-width, waist), (width, waist))),
        Shape("trim", polygon((-0.22, 0.62), (0.22, 0.84), (0.22, 0.62), (-0.22, 0.84))),
    ]


def _mushroom(generator: np.random.Generator) -> list[Shape]:
    cap = generator.uniform(0.85, 1.0)
    stem = generator.uniform(0.22, 0.32)
    dome = ellipse(0, 0.1, cap, 0.95, 180, 360)
    return [
        Shape("trim", polygon((-stem, 0.0), (stem, 0.0), (stem * 1.3, 0.9), (-stem * 1.3, 0.9))),
        Shape("body", np.concatenate([dome, ellipse(0, 0.1, cap, 0.14, 0, 180)])),
    ]


def _shirt(generator: np.random.Generator) -> list[Shape]:
    sleeve = generator.uniform(0.0, 0.15)
    width = generator.uniform(0.5, 0.58)
    half = [(0.2, -0.8), (0.5, -0.72), (1.0, sleeve - 0.3), (0.78, sleeve), (width, -0.15), (width, 0.88)]
    return [
        Shape("body", polygon(*half, *[(-x, y) for x, y in reversed(half)])),
        Shape("trim", ellipse(0, -0.78, 0.24, 0.2, 0, 180)),
    ]


def _star(generator: np.random.Generator) -> list[Shape]:
    inner = generator.uniform(0.42, 0.5)
    angle = np.radians(np.arange(10) * 36 - 90)
    radius = np.where(np.arange(10) % 2 == 0, 1.0, inner)
    return [Shape("body", np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1))]


def _umbrella(generator: np.random.Generator) -> list[Shape]:
    tall = generator.uniform(0.72, 0.9)
    hook = ellipse(0.16, 0.78, 0.16, 0.2, 180, 0)
    scallops = [ellipse(x, 0.02, 0.32, -0.12, 0, 180) for x in (0.64, 0.0, -0.64)]
    return [
        Shape("line", np.concatenate([polygon((0, -1.0), (0, 0.7)), hook])),
        Shape("body", np.concatenate([ellipse(0, 0.02, 0.96, tall, 180, 360), *scallops])),
    ]


def _vase(generator: np.random.Generator) -> list[Shape]:
    belly = generator.uniform(0.58, 0.72)
    neck = generator.uniform(0.2, 0.28)
    right = [(neck + 0.1, -0.85), (neck, -0.5), (belly * 0.85, -0.15), (belly, 0.25), (belly * 0.7, 0.7), (0.34, 0.9)]
    return [Shape("body", mirrored(*right)), Shape("dark", ellipse(0, -0.86, neck + 0.1, 0.1))]


THINGS: dict[str, Outline] = {
    "balloon": shapes.THINGS["balloon"],
    "bell": _bell,
    "boat": shapes.THINGS["boat"],
    "butterfly": _butterfly,
    "car": shapes.THINGS["car"],
    "fish": shapes.THINGS["fish"],
    "hat": shapes.THINGS["hat"],
    "heart": _heart,
    "house": _house,
    "kite": _kite,
    "mug": shapes.THINGS["mug"],
    "mushroom": _mushroom,
    "shirt": _shirt,
    "star": _star,
    "umbrella": _umbrella,
    "vase": _vase,
}
"""Things of the benchmark and others; their order affects random draws."""


def _studio(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Draw with light from one side, a cast shadow on a textured ground, a lens and a sensor."""
    far_ground = vary(GROUNDS[scene.ground], generator)
    near_ground = vary(GROUNDS[scene.ground], generator)
    horizon = generator.uniform(0.4, 0.85) * SIDE
    rows = 1 / (1 + np.exp((horizon - np.arange(SIDE)) / 1.5))
    ground = far_ground + rows[:, None, None] * (0.78 * near_ground - far_ground)
    texture = np.asarray(sum(noise(generator, cells) / 3 for cells in (5, 13, 40))) - 0.5
    ground = ground * (1 + generator.uniform(0.3, 0.8) * texture[..., None])
    light = generator.choice([-1.0, 1.0]) * generator.uniform(0.5, 0.9)
    # The shadow falls away from the light.
    shadow = np.roll(blur(canvas.solid, 3.0), (4, round(-7 * light)), axis=(0, 1))
    ground = blend(ground, ground * 0.35, 0.8 * shadow)
    picture = shaded(filled(canvas, scene, ground, generator), ground, canvas, light)
    picture = np.stack([blur(picture[..., c], 0.55) for c in range(3)], axis=2)
    y, x = (np.mgrid[0:SIDE, 0:SIDE] - SIDE / 2) / SIDE
    picture *= (1 - 0.7 * (x**2 + y**2))[..., None] * generator.uniform(0.85, 1.15)
    return picture + generator.normal(0.0, 0.02, picture.shape)


def _sticker(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Draw with flat bright colours, a thick black outline, and rays or dots behind."""
    base = vary(GROUNDS[scene.ground], generator)
    other = base * 0.85 + 0.15 * WHITE if base.mean() < 0.5 else base * 0.88
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    kind = generator.integers(3)
    rays = np.sin(np.arctan2(y - generator.uniform(0, SIDE), x - generator.uniform(0, SIDE)) * 9) * 3 + 0.5
    dots = 3 * (np.sin(x * 1.05) * np.sin(y * 1.05)) - 0.6
    behind = np.clip([np.zeros((SIDE, SIDE)), rays, dots][kind], 0, 1)
    picture = filled(canvas, scene, base + behind[..., None] * (other - base), generator)
    grey = picture.mean(axis=2, keepdims=True)
    picture = np.clip(grey + 1.25 * (picture - grey), 0, 1)
    return blend(picture, BLACK * 0.5, canvas.stroke(generator, generator.uniform(1.9, 2.9)))


def _ink(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Draw with solid black ink on white."""
    lines = canvas.stroke(generator, generator.uniform(1.0, 1.9), 0.25)
    cover = np.maximum.reduce([lines, canvas.masks["dark"], canvas.masks["body"] * canvas.pattern])
    return blend(np.broadcast_to(WHITE, (SIDE, SIDE, 3)), BLACK * generator.uniform(0.3, 1.5), cover)


def _chalk(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Draw with white chalk on a dark board."""
    boards = ((0.14, 0.24, 0.19), (0.13, 0.14, 0.16), (0.15, 0.2, 0.3))
    board = vary(boards[int(generator.integers(len(boards)))], generator, 0.02)
    dust = board * (0.85 + 0.45 * noise(generator, 6)[..., None])
    grain = np.clip(1.6 * generator.random((SIDE, SIDE)), 0.25, 1)
    fill = 0.75 * canvas.masks["body"] * canvas.pattern + 0.4 * canvas.masks["trim"] + 0.15 * canvas.masks["body"]
    cover = np.maximum(canvas.stroke(generator, 1.5, 0.5), fill) * grain
    return blend(dust, WHITE, np.clip(cover, 0, 1))


def _poster(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Draw with flat colours without outlines."""
    return filled(canvas, scene, vary(GROUNDS[scene.ground], generator), generator)


def _watercolour(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Draw with thin washes with dark rims on white paper."""
    wash = vary(GROUNDS[scene.ground], generator)
    paper = blend(np.broadcast_to(WHITE, (SIDE, SIDE, 3)), wash, np.clip(1.5 * noise(generator, 4) - 0.1, 0, 1))
    picture = filled(canvas, scene, paper, generator)
    soft = blur(canvas.solid, 1.2)
    rim = 4 * soft * (1 - soft)
    depth = np.clip(0.45 + 0.55 * noise(generator, 6) + 0.3 * rim, 0, 1) * soft
    return blend(paper, picture * (1 - 0.15 * rim[..., None]), depth)


def _neon(canvas: Canvas, scene: Scene, generator: np.random.Generator) -> Picture:
    """Draw glowing tubes of one colour in front of a black wall."""
    wall = 0.08 * (0.5 + noise(generator, 9)[..., None]) * np.ones(3)
    tubes = np.maximum(canvas.stroke(generator, 1.2, 0.1), 0.8 * canvas.masks["body"] * canvas.pattern)
    glow = np.clip(tubes + 0.9 * blur(tubes, 2.5) + 0.5 * blur(tubes, 6.0), 0, 2)[..., None]
    tint = 0.2 + 0.95 * vary(COLOURS[scene.colour], generator)
    return wall + glow * tint + 0.25 * tubes[..., None]


STYLES: dict[str, Style] = {
    **shapes.STYLES,
    "studio": _studio,
    "sticker": _sticker,
    "ink": _ink,
    "chalk": _chalk,
    "poster": _poster,
    "watercolour": _watercolour,
    "neon": _neon,
}
"""Styles of the benchmark, and styles of pretraining."""
COLOURLESS: frozenset[str] = frozenset({"sketch", "ink", "chalk"})
"""Styles that do not show the colour of the thing."""
GROUNDLESS: frozenset[str] = COLOURLESS | {"neon"}
"""Styles that do not show the ground."""


def sample_scene(
    generator: np.random.Generator, style: str, thing: str | None = None, pattern: str | None = None
) -> Scene:
    """Draw a scene of a style with uniform other attributes.

    Args:
        generator: Source of randomness.
        style: Style of the drawing.
        thing: Name of the thing; random if None.
        pattern: Name of the pattern; random if None.
    """
    thing = thing or choose(generator, tuple(THINGS))
    pattern = pattern or choose(generator, PATTERNS)
    return shapes.sample_scene(generator, style, thing, pattern)


def draw(scene: Scene, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Draw the scene as an image of shape ``[64, 64, 3]``, red, green and blue in 0 to 255."""
    return shapes.draw(scene, generator, THINGS, STYLES)


ATTRIBUTES: tuple[str, ...] = tuple(field.name for field in fields(Scene))
"""Attributes that a caption can name, in the order of their codes."""

_VALUES: dict[str, tuple[str, ...]] = {
    "style": tuple(STYLES),
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
"""Probability that a caption names an attribute, if the drawing shows it."""
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
"""Common and rare word for values of attributes; missing values are their own word."""


@dataclass(frozen=True)
class Caption:
    """A text with the codes of its attributes.

    Args:
        text: The words, without a full stop.
        codes: One number per attribute of ``ATTRIBUTES``: the value's index, or -1 if the caption does not name it.
    """

    text: str
    codes: tuple[int, ...]


def scene_codes(scene: Scene) -> NDArray[np.int64]:
    """Encode a scene's attributes as numbers of shape ``[6]``; -2 if the style does not show an attribute."""
    hidden = {"colour": scene.style in COLOURLESS, "ground": scene.style in GROUNDLESS}
    codes = [-2 if hidden.get(name) else _VALUES[name].index(getattr(scene, name)) for name in ATTRIBUTES]
    return np.asarray(codes, dtype=np.int64)


def describe(scene: Scene, generator: np.random.Generator, rare: float = 0.015) -> Caption:
    """Make a caption with at least one attribute that the drawing of the scene shows.

    Args:
        scene: Scene of the drawing.
        generator: Source of randomness.
        rare: Probability of rare words, in [0, 1].
    """
    shown = scene_codes(scene)
    visible = [index for index in range(len(ATTRIBUTES)) if shown[index] >= 0]
    named = [index for index in visible if generator.random() < _PROBABILITIES[ATTRIBUTES[index]]]
    # A caption without attributes would be true for every drawing.
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
    """Compute, from codes, which captions are true for which scenes, of shape ``[captions, scenes]``.

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
"""Styles of pretraining with their shares; none is a style of the benchmark."""


def pretraining_drawing(seed: int, index: int) -> tuple[NDArray[np.uint8], Scene]:
    """Draw one drawing of shape ``[64, 64, 3]`` and its scene, determined by seed and index."""
    # The 1 separates these drawings from the benchmark's, whose seeds have a 2 there.
    generator = np.random.default_rng([seed, 1, index])
    style = str(generator.choice(tuple(PRETRAINING_STYLES), p=tuple(PRETRAINING_STYLES.values())))
    scene = sample_scene(generator, style)
    return draw(scene, generator), scene
