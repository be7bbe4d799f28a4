"""Images with several things, made from IconDomains: ``python -m experiments.routing.scenes FOLDER``.

Each image contains four icons of a domain: one of its class, and three of other things. So a quarter of the
tokens shows the class, at a position that varies between images.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedvlp.data import IconDomains

CLASSES = 36
"""Every third class in alphabetical order; icons of the other classes are distractors."""

SCENES = 2
"""Of each icon."""


def write_scenes(root: Path) -> None:
    """Write the scenes as ``root/domain/class/number.png``, reproducibly."""
    data = IconDomains()
    classes = range(0, 3 * CLASSES, 3)
    for domain, images in data.images.items():
        others = np.flatnonzero(~np.isin(images.labels, classes))
        for label in classes:
            folder = root / domain / data.class_names[label]
            folder.mkdir(parents=True, exist_ok=True)
            for place in np.flatnonzero(images.labels == label):
                for number in range(SCENES):
                    generator = np.random.default_rng([int(place), number])
                    distractors = generator.choice(others, 3, replace=False)
                    icons = [images[int(index)] for index in (place, *distractors)]
                    scene = compose([icons[index] for index in generator.permutation(4)])
                    Image.fromarray(scene).save(folder / f"{place:03d}-{number}.png")


def compose(icons: list[Image.Image]) -> NDArray[np.uint8]:
    """Combine four icons in one image of their size, each at half its size."""
    small = [np.asarray(icon.resize((icon.width // 2, icon.height // 2), Image.Resampling.BOX)) for icon in icons]
    return np.vstack([np.hstack(small[:2]), np.hstack(small[2:])])


if __name__ == "__main__":
    write_scenes(Path(sys.argv[1]))
