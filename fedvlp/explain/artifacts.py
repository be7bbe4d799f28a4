"""Pictures and tables with their captions, written into one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedvlp.report.style import Picture
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_bytes, write_json

CAPTIONS = "captions.json"
SHOWN = ("file", "title", "caption", "alt")


@dataclass(frozen=True)
class Exhibit:
    """A file to show, with what a reader needs to understand it.

    Attributes:
        file: its name.
        title: a few words.
        caption: what is shown; a file without one stands beside a picture of the same, and is not listed.
        alt: what can be seen, in words.
        content: the file's bytes.
    """

    file: str
    title: str
    caption: str
    alt: str
    content: bytes


def exhibit(file: str, picture: Picture) -> Exhibit:
    """Returns a picture as a PNG."""
    return Exhibit(file, picture.title, picture.caption, picture.alt, picture.image("png"))


def write_exhibits(folder: Path, made: Mapping[str, Sequence[Exhibit]]) -> list[Path]:
    """Writes files and ``captions.json``, each in one step that can't be seen half done, and returns the files.

    Pictures that were made before of the same kinds are replaced; those of other kinds stay, with their captions.

    Args:
        folder: Made if it is not there.
        made: Exhibits by kind; a kind's files begin with its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = _captions(folder)
    kept = [entry for entry in before if not entry["file"].startswith(tuple(made))]
    new = [exhibit for exhibits in made.values() for exhibit in exhibits]
    for exhibit in new:
        write_bytes(folder / exhibit.file, exhibit.content)
    shown = [{name: getattr(exhibit, name) for name in SHOWN} for exhibit in new if exhibit.caption]
    write_json(folder / CAPTIONS, [*kept, *shown])
    for file in {Path(entry["file"]).name for entry in before} - {entry["file"] for entry in [*kept, *shown]}:
        (folder / file).unlink()
    return [folder / exhibit.file for exhibit in new]


def _captions(folder: Path) -> list[dict[str, str]]:
    """Returns the captions of the files that are there already."""
    path = folder / CAPTIONS
    if not path.exists():
        return []
    try:
        entries: list[dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
        return [entry for entry in entries if (folder / Path(entry["file"]).name).is_file()]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is damaged ({error!r}). Remove it, or pass another --output.") from error
