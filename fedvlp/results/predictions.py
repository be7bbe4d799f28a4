"""The predicted class of each test and held-out image of a run: ``predictions.safetensors`` and ``confusion.csv``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from fedvlp.core.metrics import Predictions, confusion_of
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import Tensors, read_tensors, write_tensors

FILE = "predictions.safetensors"
CONFUSION_FILE = "confusion.csv"
TENSORS = ("labels", "predicted", "confidence")

PredictionsByRow = Mapping[str, Mapping[str, Predictions]]
"""By "zero-shot CLIP" or "last round", and then by split, ``<role>/<domain>``."""


def write_predictions(run: Path, predictions: PredictionsByRow) -> None:
    """Writes the predictions into a run's folder."""
    tensors: Tensors = {}
    splits: dict[str, dict[str, dict[str, list[str]]]] = {}
    for row, by_split in predictions.items():
        for split, of_split in by_split.items():
            tensors |= {f"{row}/{split}/{name}": getattr(of_split, name) for name in TENSORS}
            names = {"clients": list(of_split.clients), "class_names": list(of_split.class_names)}
            splits.setdefault(row, {})[split] = names
    # After a power failure the run can be measured again, so nothing waits for the disk here.
    write_tensors(run / FILE, tensors, {"splits": splits}, is_durable=False)


def read_predictions(run: Path) -> PredictionsByRow:
    """Returns the predictions in a run's folder; empty if it has no such file.

    Raises:
        UserError: if the file is damaged.
    """
    path = run / FILE
    if not path.is_file():
        return {}
    tensors, header = read_tensors(path)
    # Names of splits hold slashes themselves, so the header says which there are.
    predictions: dict[str, dict[str, Predictions]] = {}
    try:
        for row, by_split in header["splits"].items():
            for split, names in by_split.items():
                of_split = {name: tensors[f"{row}/{split}/{name}"] for name in TENSORS}
                predictions.setdefault(row, {})[split] = Predictions(
                    **of_split, clients=tuple(names["clients"]), class_names=tuple(names["class_names"])
                )
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} holds no predictions of a run. Make the run again, or remove the file.") from error
    return predictions


def confusion_csv(predictions: PredictionsByRow, class_names: Sequence[str]) -> str:
    """Returns a line of CSV for each pair of a true and a predicted class that has images, over all states."""
    rows: list[tuple[str, str, str, str, int]] = []
    for row, by_split in predictions.items():
        for split, of_split in by_split.items():
            names = of_split.class_names or class_names
            for (true, predicted), images in sorted(confusion_of(of_split).items()):
                rows.append((row, split, names[true], names[predicted], images))
    columns = ["row", "split", "true", "predicted", "images"]
    return str(pd.DataFrame(rows, columns=columns).to_csv(index=False, lineterminator="\n"))
