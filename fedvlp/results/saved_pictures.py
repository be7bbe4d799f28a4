"""The pictures that explain a run, from the list beside them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvlp.results.record import Record

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class SavedPicture:
    """A picture that lies in a run's folder."""

    path: Path
    title: str
    caption: str
    alt: str


def saved_pictures(record: Record) -> tuple[list[SavedPicture], list[str]]:
    """Returns the pictures that explain a run, from the list beside them, and what is wrong with that list."""
    listed = record.folder / "explanations" / "captions.json"
    if not listed.is_file():
        return [], []
    try:
        entries: list[dict[str, Any]] = json.loads(listed.read_text(encoding="utf-8"))
        pictures = [_saved_picture(listed.parent, entry) for entry in entries]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        return [], [f"{listed} can't be read ({error!r}). Make the explanations again."]
    found: list[SavedPicture] = []
    problems: list[str] = []
    for picture in pictures:
        if _is_png(picture.path):
            found.append(picture)
        else:
            problems.append(f"{picture.path} is missing, or no PNG. Make the explanations again.")
    return found, problems


def _saved_picture(folder: Path, entry: dict[str, Any]) -> SavedPicture:
    # The name alone: a list of pictures must not lead out of its own folder.
    path = folder / Path(entry["file"]).name
    return SavedPicture(path, entry["title"], entry["caption"], entry["alt"])


def _is_png(path: Path) -> bool:
    """Whether a file begins as PNG files do."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(PNG_SIGNATURE)) == PNG_SIGNATURE
