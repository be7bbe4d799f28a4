"""Pictures and tables with their captions, written into one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedvlp.results.figures import Picture
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_bytes, write_json

CAPTIONS = "captions.json"


@dataclass(frozen=True)
class Artifact:
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

    def entry(self) -> dict[str, str]:
        """Returns what ``captions.json`` says of it."""
        return {"file": self.file, "title": self.title, "caption": self.caption, "alt": self.alt}


def picture_artifact(file: str, picture: Picture) -> Artifact:
    """Returns a picture as a PNG."""
    return Artifact(file, picture.title, picture.caption, picture.alt, picture.image("png"))


def write_artifacts(folder: Path, artifacts: Mapping[str, Sequence[Artifact]]) -> list[Path]:
    """Writes files and ``captions.json``, each in one step that can't be seen half done, and returns the files.

    Files that were written before for the same explanations are replaced; those of others stay, with their captions.

    Args:
        folder: Made if it is not there.
        artifacts: By the name of the explanation, with which the names of its files begin.
    """
    folder.mkdir(parents=True, exist_ok=True)
    old = _read_captions(folder)
    new: list[Artifact] = []
    for of_explanation in artifacts.values():
        new += of_explanation
    for artifact in new:
        write_bytes(folder / artifact.file, artifact.content)
    kept = [entry for entry in old if not entry["file"].startswith(tuple(artifacts))]
    listed = kept + [artifact.entry() for artifact in new if artifact.caption]
    write_json(folder / CAPTIONS, listed)
    # Only files that an earlier call listed: the folder may hold files of the user's.
    replaced = {Path(entry["file"]).name for entry in old} - {entry["file"] for entry in listed}
    for file in replaced:
        (folder / file).unlink()
    return [folder / artifact.file for artifact in new]


def _read_captions(folder: Path) -> list[dict[str, str]]:
    """Returns the captions of the files that are there already."""
    path = folder / CAPTIONS
    if not path.exists():
        return []
    try:
        entries: list[dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
        return [entry for entry in entries if (folder / Path(entry["file"]).name).is_file()]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}). Remove it, or pass another --output.") from error
