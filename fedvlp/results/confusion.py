"""``confusion.csv`` of a run: which class the images on which nobody trained were taken for."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedvlp.core.confusion import Confusion
from fedvlp.utils.csv_cells import csv_cell, csv_text
from fedvlp.utils.errors import UserError

FILE = "confusion.csv"
COLUMNS = ("row", "split", "true", "predicted", "images")
ZERO_SHOT_ROW = "zero-shot CLIP"
LAST_ROW = "last round"

Confusions = Mapping[str, Mapping[str, Confusion]]
"""By ``ZERO_SHOT_ROW`` or ``LAST_ROW``, and then by split, ``<role>/<domain>``."""


def confusion_text(confusions: Confusions, class_names: Sequence[str]) -> str:
    """Returns a row of CSV for each pair of a true and a predicted class that has images.

    >>> print(confusion_text({"last round": {"test/ink": Counter({(1, 0): 3})}}, ["cat", "dog"]))
    row,split,true,predicted,images
    last round,test/ink,dog,cat,3
    """
    rows = []
    for row, by_split in confusions.items():
        for split, confusion in by_split.items():
            for (true, predicted), images in sorted(confusion.items()):
                names = {"true": class_names[true], "predicted": class_names[predicted]}
                rows.append({"row": row, "split": split, **names, "images": images})
    return csv_text(COLUMNS, rows)


def read_confusions(run: Path, class_names: Sequence[str]) -> Confusions:
    """Returns what a run wrote, classes by their index; nothing if it has no such file.

    Raises:
        UserError: if the file is damaged.
    """
    path = run / FILE
    if not path.is_file():
        return {}
    numbers = {str(csv_cell(name)): index for index, name in enumerate(class_names)}
    found: dict[str, dict[str, Confusion]] = {}
    try:
        for row in csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline="")):
            of_split = found.setdefault(row["row"], {}).setdefault(row["split"], Counter())
            of_split[numbers[row["true"]], numbers[row["predicted"]]] += int(row["images"])
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise UserError(
            f"{path} is damaged: it should have the columns {', '.join(COLUMNS)} and the run's class names. "
            "Make the run again, or remove the file."
        ) from error
    return found
