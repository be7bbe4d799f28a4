"""Folders of images, one domain each, so that each site has its own and nobody else's."""

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
    domains, class_names = StyledShapes(cache_dir=None).load_domains()
    for domain, images in domains.items():
        labels = np.asarray(images.labels)
        for label, class_name in enumerate(class_names):
            folder = root / domain / class_name
            folder.mkdir(parents=True)
            for row in np.flatnonzero(labels == label)[:of_each_class]:
                images[int(row)].save(folder / f"{row:05d}.png")


def share_out(root: Path, sites: Path) -> dict[str, Path]:
    """Gives each domain of a folder to a site of its name: ``sites/domain/images/domain``, a link.

    Args:
        root: folder of domains with folders of classes; it is only read.
        sites: a new folder.

    Returns:
        Each site's folder of images, by its name.
    """
    shared = {}
    for domain in sorted(folder for folder in root.iterdir() if folder.is_dir()):
        images = sites / domain.name / "images"
        images.mkdir(parents=True)
        (images / domain.name).symlink_to(domain.resolve(), target_is_directory=True)
        shared[domain.name] = images
    return shared
