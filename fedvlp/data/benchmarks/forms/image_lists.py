"""Text files with a line for each image, as their publishers wrote them."""

from __future__ import annotations

import re
from pathlib import Path

from fedvlp.data.benchmarks.forms.pictures import Picture, check_there, known_class, path_inside
from fedvlp.data.catalog import Description
from fedvlp.data.catalog.forms import ImageLists
from fedvlp.utils.errors import UserError


def read_image_lists(folder: Path, part: ImageLists, description: Description) -> list[Picture]:
    """Returns the images of all lists.

    Raises:
        UserError: if a line is not as it must be, is of another data set, or names an image that is missing.
    """
    pictures: list[Picture] = []
    for name in part.files:
        listed = _read(folder, name, part, description)
        check_there(listed, folder, str(folder / name))
        pictures += listed
    return pictures


def _read(folder: Path, name: str, part: ImageLists, description: Description) -> list[Picture]:
    """Returns the images of one list."""
    path = folder / name
    pictures = []
    classes: dict[str, str] = {}
    for number, line in _lines(path, part):
        match = re.fullmatch(part.line, line)
        if match is None:
            raise UserError(
                f"Expected an image of {description.name} in line {number} of {path}; found {line[:80]!r}. Get the "
                "file from its publisher again."
            )
        groups = match.groupdict()
        if groups["class"] not in classes:
            classes[groups["class"]] = known_class(groups["class"], description, f"line {number} of {path}")
        class_name = classes[groups["class"]]
        image = part.image.format(**groups, class_name=class_name)
        role = part.parts.get(groups.get("part", ""), part.files[name])
        pictures.append(Picture(_domain(groups, description, path), class_name, path_inside(folder, image, path), role))
    return pictures


def _domain(groups: dict[str, str], description: Description, path: Path) -> str:
    """Returns the domain that a line names, or the only one."""
    if "domain" not in groups:
        return description.domains[0]
    domain = description.domain_of(groups["domain"])
    if domain is None:
        raise UserError(
            f"Expected domains of {description.name} ({', '.join(description.domains)}) in {path}; found "
            f"{groups['domain']!r}. Get the file from its publisher again."
        )
    return domain


def _lines(path: Path, part: ImageLists) -> list[tuple[int, str]]:
    """Returns the lines of a list with their numbers, empty ones and the header left out.

    Raises:
        UserError: if its header is another.
    """
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not part.header:
        return lines
    if not lines or lines[0][1] != part.header:
        found = repr(lines[0][1][:80]) if lines else "an empty file"
        raise UserError(f"Expected {path} to begin with {part.header!r}; found {found}. Get it again.")
    return lines[1:]
