"""Small made-up images: of three domains, which differ in colour, and three classes, which differ in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

DOMAINS = ["ink", "paint", "photo"]
CLASSES = ["circle", "square", "star"]


def draw(domain: int, label: int, index: int) -> Image.Image:
    """Draws a bright bar whose place tells the class, in a colour that tells the domain."""
    pixels = np.random.default_rng([domain, label, index]).integers(0, 60, (32, 32, 3), dtype=np.uint8)
    pixels[8 * label + 2 : 8 * label + 8, 4:28, domain] = 250
    return Image.fromarray(pixels)


def write_images(root: Path) -> Path:
    """Writes 4, 6 and 8 images of each class of the domains into folders, and returns their root."""
    for domain, domain_name in enumerate(DOMAINS):
        for label, class_name in enumerate(CLASSES):
            folder = root / domain_name / class_name
            folder.mkdir(parents=True)
            for index in range(4 + 2 * domain):
                draw(domain, label, index).save(folder / f"{index}.png")
    return root
