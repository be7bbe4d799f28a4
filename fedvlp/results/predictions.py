"""The predicted class of each test and held-out image of a run: ``predictions.safetensors`` and ``confusion.csv``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedvlp.core.predictions import Predictions, confusion_of
from fedvlp.core.roles import SERVED
from fedvlp.utils.tensor_files import read_tensors, write_tensors

if TYPE_CHECKING:
    import pandas as pd

FILE = "predictions.safetensors"
CONFUSION_FILE = "confusion.csv"
TENSORS = ("labels", "predicted", "confidence")

PredictionsByRow = Mapping[str, Mapping[str, Predictions]]
"""By "zero-shot CLIP" or "last round", and then by split, ``<role>/<domain>``."""


def write_predictions(run: Path, predictions: PredictionsByRow) -> None:
    """Write the predictions into a run's folder."""
    import torch  # what only reads runs needs none

    tensors: dict[str, torch.Tensor] = {}
    splits: dict[str, dict[str, dict[str, list[str]]]] = {}
    for row, by_split in predictions.items():
        for split, of_split in by_split.items():
            tensors |= {f"{row}/{split}/{name}": torch.from_numpy(getattr(of_split, name)) for name in TENSORS}
            names = {"clients": list(of_split.clients), "class_names": list(of_split.class_names)}
            splits.setdefault(row, {})[split] = names
    # After a power failure the run can be measured again, so nothing waits for the disk here.
    write_tensors(run / FILE, tensors, {"splits": splits}, is_durable=False)


def read_predictions(run: Path) -> PredictionsByRow:
    """Read the predictions in a run's folder, empty if it has none; raise UserError if the file is damaged."""
    path = run / FILE
    if not path.is_file():
        return {}
    tensors, header = read_tensors(path, framework="numpy")
    # Names of splits hold slashes themselves, so the header says which there are.
    predictions: dict[str, dict[str, Predictions]] = {}
    for row, by_split in header["splits"].items():
        for split, names in by_split.items():
            labels, predicted, confidence = (tensors[f"{row}/{split}/{name}"] for name in TENSORS)
            of_split = Predictions(labels, predicted, confidence, tuple(names["clients"]), tuple(names["class_names"]))
            predictions.setdefault(row, {})[split] = of_split
    return predictions


def confusions(predictions: PredictionsByRow, class_names: Sequence[str]) -> pd.DataFrame:
    """Return a row for each pair of a true and a predicted class that has images, over all states.

    The splits are those whose images train and choose nothing. Of 345 classes most of the 119,025 pairs are empty.
    """
    import pandas as pd  # here, so that training begins without it

    rows: list[tuple[str, str, str, str, int]] = []
    for row, by_split in predictions.items():
        for split, of_split in by_split.items():
            names = of_split.class_names or class_names
            if split.split("/")[0] in SERVED:
                for (true, predicted), images in sorted(confusion_of(of_split).items()):
                    rows.append((row, split, str(names[true]), str(names[predicted]), images))
    return pd.DataFrame(rows, columns=["row", "split", "true", "predicted", "images"])
