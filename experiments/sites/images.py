"""Folders of icons: one for each site, and one with another style."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedvlp import IconDomains

STYLES = ("colour", "duotone", "emoji")
HELD_OUT = "line"


def draw_domains(root: Path, num_sites: int = 3, images_per_class: int = 4) -> None:
    """Write icons of each site and of a held-out style in 18 classes as ``root/site/class/number.png``.

    Args:
        root: A new folder.
        num_sites: Number of sites. The first three have different styles, and further sites the same icons again.
        images_per_class: Maximum number of images of each class at a site.
    """
    domains, class_names = IconDomains(num_classes=18).load_domains()
    for number in range(num_sites + 1):
        part, index = divmod(number, len(STYLES))
        style = HELD_OUT if number == num_sites else STYLES[index]
        images = domains[style]
        labels = np.asarray(images.labels)
        for label, class_name in enumerate(class_names):
            folder = root / (f"{style}_{part}" if part and style != HELD_OUT else style) / class_name
            folder.mkdir(parents=True)
            for row in np.flatnonzero(labels == label)[:images_per_class]:
                images[int(row)].save(folder / f"{row:05d}.png")
