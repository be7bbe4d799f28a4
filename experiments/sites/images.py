"""Folders of icons, one for each of four styles."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedvlp import IconDomains

STYLES = ("colour", "duotone", "emoji", "line")


def draw_domains(root: Path, images_per_class: int = 4) -> None:
    """Write icons of three sites and a held-out domain in 18 classes as ``root/style/class/number.png``.

    Args:
        root: A new folder.
        images_per_class: Maximum number of images of each class in a style.
    """
    domains, class_names = IconDomains(num_classes=18).load_domains()
    for domain in STYLES:
        images = domains[domain]
        labels = np.asarray(images.labels)
        for label, class_name in enumerate(class_names):
            folder = root / domain / class_name
            folder.mkdir(parents=True)
            for row in np.flatnonzero(labels == label)[:images_per_class]:
                images[int(row)].save(folder / f"{row:05d}.png")
