"""Image files of a parquet file's rows, as ``domain/class/image``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path

from tqdm import tqdm

from fedvlp.data.benchmarks.download.parquet import ImageRow, ImageTable
from fedvlp.data.catalog import Description
from fedvlp.data.files.folders import ImageFile
from fedvlp.data.files.images import EXTENSIONS
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_text

STARTS = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG": ".png",
    b"GIF8": ".gif",
    b"RIFF": ".webp",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
}
"""How files of images begin."""
LISTED_SPLITS = ("train", "test")


def write_images(table: ImageTable, folder: Path, prefix: str, title: str) -> int:
    """Writes the image of each row as it is stored, and returns how many there are.

    Args:
        table: the rows.
        folder: where the domains' folders are to be.
        prefix: begins the name of each file, so that files of several tables differ.
        title: stands before the bar.

    Raises:
        UserError: if a row is no image of the data set.
        OSError: if the disk is full or refuses.
    """
    made: set[Path] = set()
    bar = tqdm(desc=title, total=len(table), unit="image", leave=False, disable=None)
    with bar:
        for number, row in enumerate(table.rows()):
            parent = folder / row.domain / row.class_name
            if parent not in made:
                parent.mkdir(parents=True, exist_ok=True)
                made.add(parent)
            (parent / _file_name(row, table, prefix, number)).write_bytes(row.content)
            bar.update()
    return len(table)


def _file_name(row: ImageRow, table: ImageTable, prefix: str, number: int) -> str:
    """Returns the name of a row's file: sorted as the rows are, whatever came before."""
    # An image that is known to be bad is known by its name, and is left out by it.
    known_bad = f"{row.domain}/{row.class_name}/{row.stored_name}" in table.description.known_bad
    if known_bad:
        return row.stored_name
    return f"{prefix}_{number:06d}{_extension(row, table, number)}"


def _extension(row: ImageRow, table: ImageTable, number: int) -> str:
    for start, extension in STARTS.items():
        if row.content.startswith(start):
            return extension
    stored = Path(row.stored_name).suffix.lower()
    if stored in EXTENSIONS:
        return stored
    raise UserError(f"Row {number} of {table.name} is no image that is known. Get the data set from its publisher.")


def write_lists(folder: Path, files: Mapping[str, list[ImageFile]], description: Description) -> None:
    """Writes which images train and which test, as the names of the hub's files say, into the folder ``splits``."""
    (folder / "splits").mkdir(exist_ok=True)
    numbers = {name: number for number, name in enumerate(description.class_names)}
    for domain, split in product(files, LISTED_SPLITS):
        listed = [image for image in files[domain] if image.name.rsplit("/", 1)[-1].startswith(f"{split}-")]
        lines = [f"{image.name} {numbers[image.class_name]}\n" for image in listed]
        write_text(folder / "splits" / f"{domain}_{split}.txt", "".join(lines))
