"""The file that says where downloaded images came from; it lies beside their domains' folders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlp.data.benchmarks.download.hub import Snapshot
from fedvlp.utils.files import write_json

NAME = "source.json"


def write_source(
    folder: Path,
    data_set: str,
    snapshot: Snapshot,
    terms: str,
    rows: Mapping[str, int],
    images: Mapping[str, Sequence[Any]],
) -> None:
    """Writes where images came from.

    Args:
        folder: of the domains' folders.
        data_set: name of the data set.
        snapshot: what was downloaded.
        terms: the owners' terms, as far as they are known.
        rows: the number of rows of each file.
        images: the images of each domain.
    """
    files = [
        {"path": file.path, "bytes": file.size, "sha256": file.sha256, "rows": rows[file.path]}
        for file in snapshot.files
    ]
    content = {
        "data_set": data_set,
        "hub": snapshot.hub,
        "repository": snapshot.repository,
        "revision": snapshot.revision,
        "terms": terms,
        "licence_of_the_card": snapshot.card.get("license"),
        "images": {domain: len(own) for domain, own in images.items()},
        "files": files,
    }
    write_json(folder / NAME, content)


def write_origin(
    folder: Path, data_set: str, repository: str, revision: str, terms: str, images: Mapping[str, int]
) -> None:
    """Writes where images came from that lie in no repository of the hub.

    Args:
        folder: of the data set.
        data_set: its name.
        repository: who downloaded it.
        revision: in which version.
        terms: the owners' terms, as far as they are known.
        images: the number of images of each domain.
    """
    content = {
        "data_set": data_set,
        "repository": repository,
        "revision": revision,
        "terms": terms,
        "images": dict(images),
    }
    write_json(folder / NAME, content)


def read_source(folder: Path) -> str | None:
    """Returns where the images in a folder came from, such as ``flwrlabs/pacs at 3941130732``; None if unknown."""
    try:
        content = json.loads((folder / NAME).read_text(encoding="utf-8"))
        return f"{content['repository']} at {content['revision']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None
