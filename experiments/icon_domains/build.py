"""Rebuild the images of IconDomains: ``python -m experiments.icon_domains.build``.

Needs npm and ``pip install resvg-py==0.5.0``; takes seconds.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from experiments.icon_domains.icons import (
    DOMAINS,
    HERE,
    Icon,
    IconSet,
    by_class,
    download,
    fingerprints,
    icon_sets,
    on_white,
    read_icons,
    render,
    things,
)
from fedvlp.utils.errors import UserError

LIMIT = 6  # images of a class in a domain
SAME_DRAWING = 0.95  # correlation of fingerprints
_LOG = logging.getLogger(__name__)
_FOLDER = Path(__file__).parents[2] / "fedvlp/data/icon_domains"


def main() -> None:
    """Read the command line, and write the images of each domain and one manifest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--packages", type=Path, default=Path("packages"), help="folder of the packages of icons")
    parser.add_argument("--output", type=Path, default=_FOLDER, help="folder to write to")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sets = [icons for icons in icon_sets() if icons.use in DOMAINS]
    download(sets, options.packages)
    icons_of = by_class(icon for icons in sets for icon in read_icons(icons, options.packages))
    classes = sorted(thing.name for thing in things() if thing.is_class)
    images: list[NDArray[np.uint8]] = []
    chosen: list[tuple[str, str, Icon]] = []
    for domain in DOMAINS:
        for name in classes:
            for icon in in_turn(icons_of[name, domain]):
                images.append(on_white(render(icon.svg)))
                chosen.append((domain, name, icon))
    keep = first_of_each_drawing(np.stack(images))
    _LOG.info("%d icons, %d of them drawn before by another set or domain", len(images), int((~keep).sum()))
    write(images, chosen, keep, options.output)
    write_licences(sets, options.output)


def in_turn(icons: list[Icon]) -> Iterator[Icon]:
    """Yield icons of one set after another, so that as many sets as possible draw each class."""
    by_set: dict[str, list[Icon]] = {}
    for icon in sorted(icons, key=lambda icon: (len(icon.name), icon.name)):
        by_set.setdefault(icon.of.name, []).append(icon)
    for turn in zip_longest(*(by_set[name] for name in sorted(by_set))):
        yield from filter(None, turn)


def first_of_each_drawing(images: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Mark the images that show no drawing of an earlier image."""
    prints = fingerprints(images)
    likeness = np.tril(prints @ prints.T, k=-1)
    keep = np.ones(len(images), bool)
    for row in range(len(images)):
        keep[row] = not (likeness[row] * keep > SAME_DRAWING).any()
    return keep


def write(
    images: list[NDArray[np.uint8]], chosen: list[tuple[str, str, Icon]], keep: NDArray[np.bool_], folder: Path
) -> None:
    """Write ``<domain>.png`` with images in a column, and ``manifest.csv`` with a row per image.

    Raises:
        UserError: If a class has no image in a domain.
    """
    folder.mkdir(parents=True, exist_ok=True)
    counts: Counter[tuple[str, str]] = Counter()
    columns: dict[str, list[NDArray[np.uint8]]] = {domain: [] for domain in DOMAINS}
    with (folder / "manifest.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["domain", "class", "set", "icon", "sha256"])
        for image, (domain, name, icon), is_first in zip(images, chosen, keep, strict=True):
            if not is_first or counts[domain, name] == LIMIT:
                continue
            counts[domain, name] += 1
            columns[domain].append(image)
            table.writerow([domain, name, icon.of.name, icon.name, hashlib.sha256(image.tobytes()).hexdigest()[:16]])
    missing = [f"{name} in {domain}" for domain, name, _ in chosen if not counts[domain, name]]
    if missing:
        raise UserError(f"Expected an image of each class in each domain, found none of {', '.join(missing)}.")
    for domain, column in columns.items():
        path = folder / f"{domain}.png"
        Image.fromarray(np.concatenate(column)).save(path, optimize=True)
        _LOG.info("%s: %d images, %d bytes", domain, len(column), path.stat().st_size)


def write_licences(sets: list[IconSet], folder: Path) -> None:
    """Write ``LICENCES.md``: the authors of the icons, their licences, and the notice that each licence requires."""
    rows = [f"| {icons.use} | {icons.name} | {icons.version} | {icons.author} | {icons.licence} |" for icons in sets]
    text = (HERE / "licences_template.md").read_text(encoding="utf-8")
    (folder / "LICENCES.md").write_text(text.replace("ROWS", "\n".join(rows)), encoding="utf-8")


if __name__ == "__main__":
    main()
