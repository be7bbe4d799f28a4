"""Rows with images in Parquet files, and in folders that Hugging Face's ``datasets`` saved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvlp.data.files.images import EXTENSIONS
from fedvlp.utils.errors import UserError

if TYPE_CHECKING:
    from pyarrow import Schema

STARTS = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG": ".png",
    b"GIF8": ".gif",
    b"RIFF": ".webp",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
}
"""File extensions by the first bytes of image files."""


def arrow_files(path: Path) -> list[tuple[str, Path]]:
    """List the files with rows, each with the part of the split that its folder names, or "".

    ``path`` is a Parquet file, or a folder written by ``save_to_disk`` of a ``Dataset`` or ``DatasetDict``.
    """
    if find_spec("pyarrow") is None:
        raise UserError(f'Reading {path} needs pyarrow. Run: pip install "fedvlp[download]"')
    if not path.is_dir():
        return [("", path)]
    # Lists of files, since a folder may also have the cached results of `map`.
    parts = sorted(path.glob("*/state.json"))
    files = []
    for state in parts or [path / "state.json"]:
        try:
            names = [file["filename"] for file in json.loads(state.read_text(encoding="utf-8"))["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"Expected a table, or a folder written by save_to_disk of `datasets`; found no state.json in {path}. "
                "Check data.table."
            ) from error
        files += [(state.parent.name if parts else "", state.parent / name) for name in names]
    return files


def read_schema(path: Path) -> Schema:
    """Read the columns of a file; raise UserError if it is damaged."""
    from pyarrow import ArrowInvalid, ipc
    from pyarrow.parquet import ParquetFile

    try:
        if path.suffix == ".arrow":
            with path.open("rb") as file:
                return ipc.open_stream(file).schema
        with ParquetFile(path) as table:
            return table.schema_arrow
    except ArrowInvalid as error:
        raise UserError(f"Could not read {path} as a table ({error}). Copy or download it again.") from error


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Iterate over the rows of a file, never with the whole file in memory."""
    from pyarrow import ipc
    from pyarrow.parquet import ParquetFile

    if path.suffix == ".arrow":
        with path.open("rb") as file:
            for batch in ipc.open_stream(file):
                yield from batch.select(columns).to_pylist()
        return
    # Reading ahead would load the whole file into memory.
    with ParquetFile(path, buffer_size=2**20, pre_buffer=False) as table:
        for batch in table.iter_batches(batch_size=64, columns=list(columns)):
            yield from batch.to_pylist()


def label_names(schema: Schema) -> dict[str, list[str]]:
    """Read the names that ``datasets`` stores for the numbers in a column of labels, by column."""
    metadata: Mapping[bytes, bytes] = schema.metadata or {}
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        # A list of labels has the names in its elements' feature.
        kinds = {column: each.get("feature", each) for column, each in features.items() if isinstance(each, dict)}
        return {column: list(kind["names"]) for column, kind in kinds.items() if "names" in kind}
    except (KeyError, TypeError, ValueError):
        return {}


def image_extension(content: bytes, stored_name: str) -> str:
    """Find the extension of an image by its first bytes, or by its stored name; "" if neither is known."""
    for start, extension in STARTS.items():
        if content.startswith(start):
            return extension
    stored = Path(stored_name).suffix.lower()
    return stored if content and stored in EXTENSIONS else ""
