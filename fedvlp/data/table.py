"""Tables of images: one row per image, with its label, domain, client, role in the split and group."""

from __future__ import annotations

import csv
import logging
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from string import Formatter
from typing import Any

from tqdm import tqdm

from fedvlp.core.several_labels import SEPARATOR
from fedvlp.data.class_names import read_class_names
from fedvlp.data.files.arrow import arrow_files, image_extension, label_names, read_rows, read_schema
from fedvlp.data.files.images import EXTENSIONS, compose_name
from fedvlp.data.files.shards import cell_text, read_samples
from fedvlp.data.listed import ListedImages
from fedvlp.data.partition import GivenClients
from fedvlp.data.rows import ROLE_OF_PART, UNKNOWN, ImageFile, rename_labels, split_labels
from fedvlp.data.splits import hash_lines
from fedvlp.utils.errors import UserError, did_you_mean_or_choose, shorten
from fedvlp.utils.files import atomic_write, locked, read_json, write_json

log = logging.getLogger(__name__)
COLUMNS = ("path", "label", "domain", "client", "split", "group", "name")
"""The columns of a table; all but ``path`` and ``label`` are optional, and others are ignored."""
PRESENT = ("1", "1.0", "True", "true")
ABSENT = ("0", "0.0", "False", "false")
NOT_KNOWN = ("", "-1", "-1.0", "nan")
"""Cells in the columns of classes or labels."""


class ImageTable(ListedImages):
    """Images listed in a table, one row per image.

    Reads CSV, TSV and Parquet files, folders saved by ``datasets``, and WebDataset's tar files, with these columns:

    * ``path``, relative to the root; or ``image``, the image's bytes in Parquet files and saved folders
    * ``label``, the class
    * optionally ``domain``, ``client``, ``split`` (train, validation, test) and ``group``, such as a patient
    * optionally ``name``, the image's name in splits; by default its path

    Args:
        table: The file, the folder saved by ``datasets``, or a pattern of tar files, such as "shards/*.tar".
        root: Folder of the images; by default the table's folder.
        columns: Names of the columns in this table, such as {"label": "dx"}. A path may be composed from columns, as in
            {"path": "images/{image_id}.jpg"}. A label may have a column per class, as in {"label": "melanoma|nevus"}:
            1 for the image's class, 0 or nothing for the others. With several labels, nothing and -1 are unknown.
        class_names: File with a class name per line, for labels that are numbers from 0.
        several_labels: Whether an image may have several labels or none, as in "dog|tree" or "dog|?tree", where ``?``
            marks an unknown label.
        **options: The arguments of ListedImages.
    """

    def __init__(
        self,
        table: str,
        root: str | None = None,
        columns: dict[str, str] | None = None,
        class_names: str | None = None,
        several_labels: bool = False,
        **options: Any,
    ) -> None:
        path = Path(table).expanduser()
        super().__init__(root=str(path.parent if root is None else root), **options)
        self.table = path
        self.name = f"{type(self).__name__} {path.name}"
        self._has_own_partition = options.get("partition") is None
        self.columns = columns or {}
        self.class_names_file = class_names
        self.several_labels = several_labels
        unknown = [name for name in self.columns if name not in (*COLUMNS, "image")]
        if unknown:
            hint = did_you_mean_or_choose(unknown[0], COLUMNS)
            raise UserError(f"Expected data.columns to name columns of fedvlp's tables; got {unknown[0]!r}. {hint}")

    def scan(self) -> dict[str, list[ImageFile]]:
        """List the images of each domain, sorted; raise UserError if a column or value is missing or wrong."""
        rows = self._rows()
        repeated = [name for name, count in Counter(file.name for file in rows).items() if count > 1]
        if repeated:
            raise UserError(
                f"Expected each image once in {self.table}; {len(repeated):,} are in several rows, such as "
                f"{repeated[0]!r}. Remove the copies."
            )
        if self._has_own_partition and any(file.client for file in rows):
            self.partition = GivenClients()
        return {domain: list(files) for domain, files in groupby(sorted(rows), attrgetter("domain"))}

    def _rows(self) -> list[ImageFile]:
        content = read_table(self.table, self.cache_dir, self.columns.get("image", "image"))
        column_of = {name: self.columns.get(name, name) for name in COLUMNS}
        self._check_columns(content, column_of)
        labels = self._labels(content, column_of["label"])
        # A split assigns each image to a part, or no image.
        has_split = any(row.get(column_of["split"]) for row in content.rows)
        folder = content.folder or self.root
        files = []
        for number, (row, label) in enumerate(zip(content.rows, labels, strict=True), start=2):
            cells = {name: self._cell(row, column) for name, column in column_of.items()}
            path = os.path.join(folder, cells["path"].replace("\\", "/"))
            # Names are the same on every machine, so they are relative.
            name = compose_name(cells["name"] or Path(os.path.relpath(path, folder)).as_posix())
            part = cells["split"].strip().casefold()
            has_label = label.partition(SEPARATOR)[0] != UNKNOWN if self.several_labels else bool(label)
            problems = {"no path": not cells["path"], "no label": not has_label}
            problems[repr(part) if part else "no split"] = part not in (ROLE_OF_PART if has_split else ("",))
            for problem, is_found in problems.items():
                if is_found:
                    raise UserError(
                        "Expected a path, a label and, if there is a split, train, validation or test in each row; "
                        f"line {number} of {self.table} has {problem}. Correct or remove the row."
                    )
            domain = compose_name(cells["domain"]) or self.table.stem
            role = ROLE_OF_PART.get(part)
            files.append(ImageFile(domain, label, name, path, role, client=cells["client"], group=cells["group"]))
        return files

    def _cell(self, row: Mapping[str, str], column: str) -> str:
        return column.format_map(row) if "{" in column else row.get(column, "")

    def _check_columns(self, content: Cells, column_of: Mapping[str, str]) -> None:
        for name, column in column_of.items():
            if name not in ("path", "label") and name not in self.columns:
                continue
            # A composed path and classes with a column each name several columns.
            parts = [part for _, part, _, _ in Formatter().parse(column)] if "{" in column else column.split("|")
            for part in parts:
                if part is not None and part not in content.columns:
                    hint = did_you_mean_or_choose(part, content.columns)
                    raise UserError(
                        f"Expected a column {part!r} for the {name} in {self.table}. {hint} Rename it with "
                        f"data.columns.{name}."
                    )

    def _labels(self, content: Cells, column: str) -> list[str]:
        """Read the class, or the set of labels, of each row."""
        if "|" in column:
            columns = column.split("|")
            labels = [self._marked(row, columns, line) for line, row in enumerate(content.rows, start=2)]
            self._report_unused(map(compose_name, columns), labels)
            return labels
        labels = [compose_name(row[column].strip()) for row in content.rows]
        if self.several_labels:
            labels = [rename_labels(label, {}) for label in labels]
        parts = Counter(chain.from_iterable(label.split(SEPARATOR) for label in set(labels)))
        # A class name may contain |, but names that share a part are sets of labels.
        if not self.several_labels and parts.total() > len(parts):
            example = next(label for label in labels if SEPARATOR in label)
            raise UserError(
                f"Expected one label in each row of {self.table}; got {example!r}. If images have several labels, set "
                "data.several_labels=true; otherwise rename the class."
            )
        names = content.class_names.get(column, [])
        if self.class_names_file is not None:
            names = read_class_names(self.class_names_file)
        if not names:
            return labels
        numbers = set(chain.from_iterable(map(split_labels, labels))) if self.several_labels else set(labels)
        wrong = sorted(label for label in numbers if not (label.isdecimal() and int(label) < len(names)))
        if wrong:
            raise UserError(
                f"Expected labels from 0 to {len(names) - 1} in column {column!r} of {self.table}, since there are "
                f"{len(names)} class names; got {wrong[0]!r}. Correct the labels, or remove data.class_names."
            )
        name_of = {number: names[int(number)] for number in numbers}
        labels = [rename_labels(label, name_of) if self.several_labels else name_of[label] for label in labels]
        self._report_unused(names, labels)
        return labels

    def _marked(self, row: Mapping[str, str], columns: Sequence[str], line: int) -> str:
        """Read the columns of the classes: the class with 1, or the set of present and unknown labels."""
        values = {column: row[column].strip() for column in columns}
        present = [column for column, value in values.items() if value in PRESENT]
        unknown = [UNKNOWN + column for column, value in values.items() if value in NOT_KNOWN]
        if self.several_labels:
            wrong = [column for column, value in values.items() if value not in (*PRESENT, *ABSENT, *NOT_KNOWN)]
            if not wrong:
                return rename_labels(compose_name(SEPARATOR.join([*present, *unknown])), {})
            expected, remedy = "1, 0, or nothing or -1 if it is unknown", "remove the row"
            found = f"{values[wrong[0]]!r} in {wrong[0]!r}"
        else:
            if len(present) == 1 and set(values.values()) <= {"", *PRESENT, *ABSENT}:
                return compose_name(present[0])
            expected, remedy = "a single 1, and otherwise 0", "set data.several_labels=true"
            found = ", ".join(values.values())
        raise UserError(
            f"Expected {expected}, in the columns {', '.join(columns)} of {self.table}; line {line} has {found}. "
            f"Correct it, or {remedy}."
        )

    def _report_unused(self, names: Iterable[str], labels: Sequence[str]) -> None:
        used = set(chain.from_iterable(map(split_labels, labels))) if self.several_labels else set(labels)
        if unused := [name for name in names if name not in used]:
            log.warning("%s has no image of %s, so a method can't learn it.", self.table, shorten(unused))

    def order_classes(self, names: Collection[str]) -> list[str]:
        """Order the classes by the file of their names, or alphabetically."""
        if self.class_names_file is None:
            return sorted(names)
        return [name for name in dict.fromkeys(read_class_names(self.class_names_file)) if name in names]


@dataclass(frozen=True)
class Cells:
    """The cells of a table as text.

    Attributes:
        columns: The names of its columns.
        rows: The cells of each row by column.
        class_names: Class names that the file itself gives to numbers, by column.
        folder: Folder of the extracted images; None if the rows name files.
    """

    columns: Sequence[str]
    rows: list[dict[str, str]]
    class_names: Mapping[str, list[str]] = field(default_factory=dict)
    folder: Path | None = None


def read_table(path: Path, cache_dir: Path | None, image: str = "image") -> Cells:
    """Read a CSV, TSV or Parquet file, a folder saved by ``datasets``, or tar files.

    Raises UserError if there is no such file, or it can't be read as a table.

    Args:
        path: The file or folder, or the pattern of tar files.
        cache_dir: Folder for images that the rows contain; they are extracted once.
        image: Name of the column of these images.
    """
    kind = path.suffix.casefold()
    if path.is_dir() or (path.is_file() and kind in (".parquet", ".pq")):
        return _read_arrow(path, cache_dir, image)
    if kind == ".tar":
        samples = read_samples(path, EXTENSIONS)
        return Cells(list(samples[0]), samples, folder=path.parent)
    if not path.is_file():
        raise UserError(f"Expected a table of images; there is no file {path}. Check data.table.")
    if kind not in (".csv", ".tsv", ".txt"):
        raise UserError(f"Expected a table as .csv, .tsv or .parquet, or .tar; got {path.name}. Save it as CSV.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            # Spreadsheets of many countries write semicolons, since commas are decimal points there.
            reader = csv.DictReader(file, delimiter=max(",;\t", key=first.count), restval="", restkey="")
            rows = list(reader)
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"Could not read {path} as a table ({error}). Save it as CSV in UTF-8.") from error
    if not rows:
        raise UserError(f"Expected a header and a row per image in {path}; found {first.strip() or 'nothing'!r}.")
    return Cells(reader.fieldnames or (), rows)


def _read_arrow(path: Path, cache_dir: Path | None, image: str) -> Cells:
    files = arrow_files(path)
    schema = read_schema(files[0][1])
    has_parts = any(part for part, _ in files)
    columns = [name for name in schema.names if name != image]
    rows: list[dict[str, str]] = []
    for part, file in files:
        for row in read_rows(file, columns):
            cells = {name: cell_text(value) for name, value in row.items()}
            rows.append({"split": part, **cells} if has_parts else cells)
    if has_parts and "split" not in columns:
        columns.append("split")
    if image not in schema.names:
        return Cells(columns, rows, label_names(schema))
    if cache_dir is None:
        raise UserError(f"{path} contains images, which are extracted to the cache. Set data.cache_dir to a folder.")
    paths = [file for _, file in files]
    state = [f"{file}\0{file.stat().st_size}\0{file.stat().st_mtime_ns}" for file in map(Path.resolve, paths)]
    folder = cache_dir / "tables" / hash_lines(state)
    extracted = _extract(paths, image, folder)
    stored_names = [compose_name(stored) for _, stored in extracted]
    has_names = all(stored_names) and len(set(stored_names)) == len(stored_names)
    for row, (file_name, _), stored in zip(rows, extracted, stored_names, strict=True):
        row |= {"path": file_name, "name": stored if has_names else file_name}
    return Cells([*columns, "path", "name"], rows, label_names(schema), folder)


def _extract(files: Sequence[Path], image: str, folder: Path) -> list[tuple[str, str]]:
    """Write the images of all rows to a folder unless they are there; return their files and their stored paths."""
    listing = folder / "images.json"
    with locked(folder):
        if not listing.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            entries: list[tuple[str, str]] = []
            rows = chain.from_iterable(read_rows(file, [image]) for file in files)
            for row in tqdm(rows, f"extracting to {folder}", unit="image", leave=False, disable=None):
                content, stored = _content(row[image])
                # Names are the same on every machine, so they are relative.
                name = os.path.basename(stored) if os.path.isabs(stored) else stored
                entries.append((f"{len(entries):07d}{image_extension(content, stored)}", name))
                (folder / entries[-1][0]).write_bytes(content)
            write_json(listing, entries)
        return [(name, stored) for name, stored in read_json(listing)]


def _content(value: Any) -> tuple[bytes, str]:
    """Return an image's bytes and its stored path; no bytes are reported later with all other unreadable images."""
    if not isinstance(value, dict):
        return value or b"", ""
    content, path = value["bytes"], value["path"] or ""
    # `datasets` stores only the path of an image on the same machine.
    if content is None and os.path.isfile(path):
        content = Path(path).read_bytes()
    return content or b"", path


def write_table(path: Path, domains: Mapping[str, Sequence[ImageFile]], root: Path) -> int:
    """Write the images of a data set as CSV with the columns that are used; return the number of rows.

    Raises UserError if the images are not single files, as in CIFAR's archives.
    """
    rows = []
    for file in chain.from_iterable(domains.values()):
        if file.pixels is not None:
            raise UserError("A table lists image files, but this data set stores many images in one file.")
        relative = Path(os.path.relpath(file.path, root)).as_posix()
        cells = {"path": relative, "label": file.class_name, "domain": file.domain, "client": file.client}
        cells |= {"split": file.role or "", "group": file.group, "name": "" if file.name == relative else file.name}
        rows.append(cells)
    used = [name for name in COLUMNS if name in ("path", "label") or any(row[name] for row in rows)]
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as table:
        writer = csv.DictWriter(table, used, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)
