"""Made-up images in folders, a domain each."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedvlp import StyledShapes


def draw_domains(root: Path, of_each_class: int = 4) -> None:
    """Writes made-up images as ``root/style/class/number.png``.

    Args:
        root: a new folder.
        of_each_class: how many images of each class a style gets, so that it is quick.
    """
    domains, class_names = StyledShapes().load_domains()
    for domain, images in domains.items():
        labels = np.asarray(images.labels)
        for label, class_name in enumerate(class_names):
            folder = root / domain / class_name
            folder.mkdir(parents=True)
            for row in np.flatnonzero(labels == label)[:of_each_class]:
                images[int(row)].save(folder / f"{row:05d}.png")
