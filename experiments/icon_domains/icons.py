"""Icons of pinned packages: names in plain words, pixels, and detection of equal drawings.

Each set of icons is a package ``@iconify-json/<set>`` of the npm registry: one JSON with the SVG of each icon by its
name. ``sets.csv`` has the pinned version, SHA-256 and use of every package; ``things.csv`` has things with their names
in the sets.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image

from fedvlp.utils.errors import UserError

HERE = Path(__file__).parent
DOMAINS = ("line", "solid", "duotone", "colour", "emoji", "pixel")
SIDE = 64  # pixels

# Final words of an icon's name that describe its style, not its content.
_STYLE = re.compile(
    r"-(fill|filled|outlined?|solid|line|linear|bold|thin|light|duotone|regular|sharp|round(ed)?|two-?tone|broken|color"
    r"|alt\d?|stroke|bulk|flat|duo|small|[ofsbl]|\d+(px)?|one|two|three)$"
)
_BRANDS = re.compile("brand|logo", re.IGNORECASE)


@dataclass(frozen=True)
class IconSet:
    """A package of icons.

    Attributes:
        name: Name of the package, after ``@iconify-json/``.
        version: Version of the package.
        use: A domain of the benchmark, ``validation`` or ``pretraining``.
        style: Pattern of the names of its icons, if the set has several styles.
        licence: SPDX identifier, as stated by the package.
        author: Author, as stated by the package.
        sha256: SHA-256 of the package's archive.
    """

    name: str
    version: str
    use: str
    style: str
    licence: str
    author: str
    sha256: str


@dataclass(frozen=True)
class Icon:
    """One icon, with its set, its name in the set, and its SVG."""

    of: IconSet
    name: str
    svg: str

    @cached_property
    def words(self) -> str:
        """The content as named by the set, without words of style: "birthday cake"."""
        name = self.name
        while (shorter := _STYLE.sub("", name)) != name:
            name = shorter
        return name.replace("-", " ")


@dataclass(frozen=True)
class Thing:
    """A thing that icons may show.

    Attributes:
        name: Name of the class in the benchmark.
        part: ``seen`` or ``never trained`` for a class, by whether the CLIP was trained on its name; ``development``
            for a thing that is not a class and was never trained; empty for others.
        synonyms: Whole names of icons that show the thing.
    """

    name: str
    part: str
    synonyms: tuple[str, ...]

    @property
    def is_class(self) -> bool:
        """Whether the thing is a class of the benchmark."""
        return self.part in ("seen", "never trained")


def icon_sets() -> list[IconSet]:
    """Read the pinned sets."""
    with (HERE / "sets.csv").open(encoding="utf-8", newline="") as file:
        return [IconSet(row.pop("set"), **row) for row in csv.DictReader(file)]


def things() -> list[Thing]:
    """Read the things, including things that are not classes."""
    with (HERE / "things.csv").open(encoding="utf-8", newline="") as file:
        return [Thing(row["thing"], row["part"], tuple(row["synonyms"].split("; "))) for row in csv.DictReader(file)]


def download(sets: Sequence[IconSet], folder: Path) -> None:
    """Download the packages of sets that are missing in a folder, with ``npm pack``.

    Raises:
        UserError: If npm is missing or fails, or an archive is not the pinned one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [icons for icons in sets if not _archive(icons, folder).is_file()]
    npm = shutil.which("npm")
    if missing and npm is None:
        raise UserError(f"Expected the command npm, which downloads {len(missing)} packages of icons. Install Node.js.")
    for icons in missing:
        package = f"@iconify-json/{icons.name}@{icons.version}"
        finished = subprocess.run([str(npm), "pack", "--silent", package], cwd=folder, capture_output=True, text=True)
        if finished.returncode:
            raise UserError(f"npm pack {package} failed: {finished.stderr.strip()}")
    for icons in sets:
        archive = _archive(icons, folder)
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != icons.sha256:
            raise UserError(f"Expected {archive} with SHA-256 {icons.sha256}, found {digest}. Delete it and try again.")


def read_icons(icons: IconSet, folder: Path) -> list[Icon]:
    """Read the icons of a set in the order of its package, without hidden icons, brands and other styles."""
    with tarfile.open(_archive(icons, folder)) as archive:
        content = _member(archive, "package/icons.json")
        categories = {}
        if "package/metadata.json" in archive.getnames():
            categories = _member(archive, "package/metadata.json").get("categories", {})
    brands = {name for category, names in categories.items() if _BRANDS.search(category) for name in names}
    found = []
    for name, icon in content["icons"].items():
        if icon.get("hidden") or name in brands or not re.search(icons.style, name):
            continue
        found.append(Icon(icons, name, _svg(content | icon)))
    return found


def _archive(icons: IconSet, folder: Path) -> Path:
    return folder / f"iconify-json-{icons.name}-{icons.version}.tgz"


def _member(archive: tarfile.TarFile, name: str) -> dict[str, Any]:
    file = archive.extractfile(name)
    assert file is not None  # not a folder
    content: dict[str, Any] = json.load(file)
    return content


def _svg(icon: dict[str, Any]) -> str:
    """Make a square SVG of an icon (16 x 16 unless its package states a size), with black as the default colour."""
    width = icon.get("width", 16)
    height = icon.get("height", 16)
    side = max(width, height)
    left = icon.get("left", 0) - (side - width) / 2
    top = icon.get("top", 0) - (side - height) / 2
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" color="black" '
        f'viewBox="{left} {top} {side} {side}">{icon["body"]}</svg>'
    )


def render(svg: str) -> UInt8[NDArray[np.uint8], "64 64 4"]:
    """Render the pixels of an SVG as red, green, blue and opacity, with resvg."""
    import resvg_py  # only needed to rebuild the benchmark

    png = resvg_py.svg_to_bytes(svg_string=svg, width=SIDE, height=SIDE, skip_system_fonts=True)
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))


def on_white(pixels: UInt8[NDArray[np.uint8], "... 64 64 4"]) -> UInt8[NDArray[np.uint8], "... 64 64 3"]:
    """Put pictures on a white background."""
    opacity = pixels[..., 3:].astype(np.uint16)
    blended = pixels[..., :3] * opacity + 255 * (255 - opacity)
    return ((blended + 127) // 255).astype(np.uint8)


def things_by_words() -> dict[str, Thing]:
    """Map each synonym to its thing, written with spaces and, as some sets write it, without."""
    found = {}
    for thing in things():
        for words in thing.synonyms:
            found[words] = thing
            found.setdefault(words.replace(" ", ""), thing)
    return found


def has_words_of(words: str, banned: Iterable[str]) -> bool:
    """Check whether words contain the words of a banned name in sequence, perhaps in the plural.

    >>> has_words_of("two paper clips", ["paper clip"]), has_words_of("eclipse", ["clip"])
    (True, False)
    """
    text = f" {words} "
    return any(f" {name} " in text or f" {name}s " in text or f" {name}es " in text for name in banned)


def fingerprints(pictures: UInt8[NDArray[np.uint8], "n 64 64 3"]) -> Float[NDArray[np.float32], "n 768"]:
    """Compute the ink of each picture on white, cropped, at 16 x 16 in three colours, with mean 0 and norm 1.

    Their products are correlations, independent of size, position and small details of a drawing.
    """
    prints = np.zeros((len(pictures), 3 * 16 * 16), np.float32)
    for row, picture in enumerate(pictures):
        ink = 255 - picture
        rows = np.flatnonzero(ink.max(axis=(1, 2)) > 16)
        columns = np.flatnonzero(ink.max(axis=(0, 2)) > 16)
        if not len(rows):
            continue
        box = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        small = Image.fromarray(ink).resize((16, 16), Image.Resampling.BOX, box=box)
        flat = np.asarray(small, np.float32).ravel()
        flat -= flat.mean()
        prints[row] = flat / max(float(np.linalg.norm(flat)), 1.0)
    return prints


def by_class(icons: Iterable[Icon]) -> dict[tuple[str, str], list[Icon]]:
    """Group icons by class and domain: icons with a synonym of the class as their whole name.

    A few icons show another thing, as found by inspection; ``misnamed.csv`` excludes them.
    """
    thing_of = things_by_words()
    with (HERE / "misnamed.csv").open(encoding="utf-8", newline="") as file:
        misnamed = {(row["set"], row["icon"]) for row in csv.DictReader(file)}
    found = defaultdict(list)
    for icon in icons:
        thing = thing_of.get(icon.words) or thing_of.get(icon.words.replace(" ", ""))
        if thing is None or not thing.is_class or (icon.of.name, icon.name) in misnamed:
            continue
        found[thing.name, icon.of.use].append(icon)
    return found
