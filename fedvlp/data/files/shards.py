"""Images in WebDataset's tar files, which are read in place, in any order."""

import json
import os
import re
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from fedvlp.core.several_labels import SEPARATOR
from fedvlp.utils.errors import UserError

PathLike = str | os.PathLike[str]
MEMBER = re.compile(r"(.+\.tar)#(\d+)\+(\d+)", re.DOTALL | re.IGNORECASE)
"""Path of an image in a tar file: the tar file's path, the position of the image's first byte, and its size."""


def read_content(path: PathLike) -> bytes:
    """Read a file, or an image in a tar file."""
    match = MEMBER.fullmatch(os.fspath(path))
    if match is None:
        return Path(path).read_bytes()
    with open(match[1], "rb") as file:
        file.seek(int(match[2]))
        return file.read(int(match[3]))


def read_samples(pattern: Path, extensions: frozenset[str]) -> list[dict[str, str]]:
    """List the images in tar files as rows of a table, without reading the images.

    Files whose names are equal up to the first dot are one sample. It has an image; the fields of ``json`` are cells,
    and ``cls`` or ``txt`` is the label unless ``json`` has one. By default, all images are one domain.

    Args:
        pattern: A tar file, or several, such as ``shards/*.tar``.
        extensions: Extensions of images.
    """
    rows = []
    for shard in sorted(pattern.parent.glob(pattern.name)):
        samples: dict[tuple[str, str], dict[str, str]] = {}
        try:
            with tarfile.open(shard, "r:") as tar:
                for member in filter(tarfile.TarInfo.isfile, tar):
                    file = PurePosixPath(member.name)
                    key, _, kind = file.name.partition(".")
                    sample = samples.setdefault((str(file.parent), key), {})
                    if key and f".{kind.lower()}" in extensions:
                        sample |= {"name": str(file), "path": f"{shard.name}#{member.offset_data}+{member.size}"}
                    elif kind in ("json", "cls", "txt") and (content := tar.extractfile(member)):
                        sample[kind] = content.read().decode().strip()
            for sample in samples.values():
                fields = {name: cell_text(value) for name, value in json.loads(sample.pop("json", "{}")).items()}
                label = sample.get("cls") or sample.get("txt", "")
                if "path" in sample:
                    default = {"label": label, "domain": pattern.absolute().parent.name}
                    rows.append(default | sample | fields | {"path": sample["path"]})
        except (tarfile.TarError, ValueError, AttributeError) as error:
            raise UserError(
                f"Could not read {shard} ({error}). Expected an uncompressed tar file whose json files "
                "contain objects. Decompress it, or write it again."
            ) from error
    if not rows:
        raise UserError(f"Expected tar files with images at {pattern}; found no image. Check data.table.")
    # Keys may be unique only within a tar file; an image without a name is named by its path.
    if len({row["name"] for row in rows}) < len(rows):
        rows = [row | {"name": ""} for row in rows]
    columns = dict.fromkeys(name for row in rows for name in row)
    return [dict.fromkeys(columns, "") | row for row in rows]


def cell_text(value: Any) -> str:
    """Convert a value to the text of a table's cell; a list contains the labels of an image."""
    if isinstance(value, list):
        return SEPARATOR.join(map(str, value))
    return "" if value is None else str(value)
