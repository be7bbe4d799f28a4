"""Drawings for the pretraining of the tiny CLIP."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedvlp.data.styled_shapes.drawings.scene import Scene, sample_scene
from fedvlp.data.styled_shapes.drawings.styles import draw

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
