"""Which pictures a report shows: those of a table's runs, and those that were made of single runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from fedvlp.report.bars import domain_bars, seed_boxes
from fedvlp.report.curves import accuracy_over_communication, accuracy_over_rounds, option_curve, parameters
from fedvlp.report.options import OptionStudy, option_studies
from fedvlp.report.rows import Row, columns_of, role_title
from fedvlp.report.style import MOST, Picture
from fedvlp.results.compare import Table
from fedvlp.results.record import Record

Item = TypeVar("Item")
FEWEST_SEEDS = 3
"""How many seeds a row must have for boxes."""


@dataclass(frozen=True)
class SavedPicture:
    """A picture that lies in a run's folder."""

    path: Path
    title: str
    caption: str
    alt: str


def pictures_of(table: Table, rows: Sequence[Row]) -> Iterator[Picture]:
    """Yields the figures of one table; those of many rows are several figures.

    Args:
        table: all runs, from which hyperparameter curves take what they need.
        rows: the table's complete rows.
    """
    role = table.role
    if any(_has_curve(row) for row in rows):
        yield from _in_parts(
            rows, lambda part: accuracy_over_rounds(part, role), lambda row: _has_curve(row) or not row.is_trained
        )
    methods = list(dict.fromkeys(row.example.method for row in rows)) if any(map(parameters, rows)) else []
    yield from _in_parts(
        methods, lambda part: accuracy_over_communication([row for row in rows if row.example.method in part], role)
    )
    yield from _in_parts(rows, lambda part: domain_bars(part, role))
    yield from _in_parts(
        rows, lambda part: _training_boxes(part, role), lambda row: len(row.means(role)) >= FEWEST_SEEDS
    )
    for study in option_studies(table.group.records):
        yield _study_picture(study, role)


def saved_pictures(record: Record) -> tuple[list[SavedPicture], list[str]]:
    """Returns the pictures that explain a run, from the list beside them, and what is wrong with that list."""
    listed = record.folder / "explanations" / "captions.json"
    if not listed.is_file():
        return [], []
    try:
        entries: list[dict[str, Any]] = json.loads(listed.read_text(encoding="utf-8"))
        found = [
            SavedPicture(listed.parent / Path(entry["file"]).name, entry["title"], entry["caption"], entry["alt"])
            for entry in entries
        ]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        return [], [f"{listed} can't be read ({error!r}). Make the explanations again."]
    missing = [
        f"{saved.path} is missing, or no PNG. Make the explanations again."
        for saved in found
        if not _is_png(saved.path)
    ]
    return [saved for saved in found if _is_png(saved.path)], missing


def _in_parts(
    items: Sequence[Item],
    draw: Callable[[Sequence[Item]], Picture],
    is_drawn: Callable[[Item], bool] = lambda item: True,
) -> Iterator[Picture]:
    """Yields a picture, or several that are about equally full, of neighbours that one figure can tell apart."""
    size = math.ceil(len(items) / max(math.ceil(len(items) / MOST), 1))
    parts = [items[start : start + size] for start in range(0, len(items), max(size, 1))]
    drawn = [kept for part in parts if (kept := [item for item in part if is_drawn(item)])]
    for number, part in enumerate(drawn, 1):
        made = draw(part)
        yield made if len(drawn) == 1 else replace(made, title=f"{made.title} ({number} of {len(drawn)})")


def _has_curve(row: Row) -> bool:
    """Whether a row was evaluated in several rounds."""
    return len(row.curve("validation")) > 1


def _training_boxes(rows: Sequence[Row], role: str) -> Picture:
    """Returns a box for each row, over what its seeds gave."""
    values = {row.label: row.means(role) for row in rows}
    return seed_boxes(values, f"Mean {role_title(role)}", "training", [row.index for row in rows])


def _study_picture(study: OptionStudy, role: str) -> Picture:
    """Returns a curve over an option's values, or, of a seed, boxes for each domain."""
    method = f"{study.method} ({study.setting})" if study.setting else study.method
    if not study.is_of_seeds:
        return option_curve(method, study.option, study.rows, role)
    values = {
        title: [fmean(row.means(name)) for row in study.rows.values() if row.means(name)]
        for title, name in columns_of(study.rows.values(), role).items()
    }
    return seed_boxes(values, f"{method}: {role_title(role)}", study.option.replace("_seed", ""))


def _is_png(path: Path) -> bool:
    """Whether a file begins as PNG files do."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8) == b"\x89PNG\r\n\x1a\n"
