"""Data sets that are drawn by the same hand as StyledShapes, and have other classes: what transfer is measured on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from experiments.tiny_clip.drawings import THINGS, draw, sample_scene
from fedvlp.data.styled_shapes.drawings import COLOURS
from fedvlp.utils.files import write_json

STYLES = ("photo", "painting", "cartoon", "sketch")
IMAGES_PER_CLASS = 20
DATA_SETS = {"things": tuple(THINGS), "colours": tuple(COLOURS)}
"""The classes of each: what is drawn, and in which colour."""


def write_data_set(root: Path, name: str) -> Path:
    """Draws a data set into class folders unless it is there, and returns its folder.

    Its drawings are of all things, patterns and colours, in the styles of StyledShapes, which are no domains here.

    Args:
        root: folder of all data sets.
        name: one of ``DATA_SETS``.
    """
    folder = root / name
    is_whole = root / f"{name}.json"
    if is_whole.is_file():
        return folder
    for number, class_name in enumerate(DATA_SETS[name]):
        place = folder / class_name
        place.mkdir(parents=True, exist_ok=True)
        for index in range(IMAGES_PER_CLASS):
            _image(name, class_name, number, index).save(place / f"{index:02d}.png")
    write_json(is_whole, {"classes": list(DATA_SETS[name]), "images_per_class": IMAGES_PER_CLASS})
    return folder


def _image(name: str, class_name: str, number: int, index: int) -> Image.Image:
    """Returns one drawing, which depends on these arguments alone."""
    # The 3 keeps these drawings apart from those of the pretraining and of the benchmark.
    generator = np.random.default_rng([3, len(name), number, index])
    style = STYLES[index % len(STYLES)]
    if name == "things":
        return Image.fromarray(draw(sample_scene(generator, style, class_name), generator))
    while True:  # a scene draws its colour itself
        scene = sample_scene(generator, style)
        if scene.colour == class_name:
            return Image.fromarray(draw(scene, generator))
