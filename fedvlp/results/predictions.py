"""The predicted class of each test and held-out image of a run: ``predictions.safetensors`` and ``confusion.csv``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedvlp.core.predictions import Predictions, confusion_of
from fedvlp.core.roles import SERVED
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import read_tensors, write_tensors

if TYPE_CHECKING:
    import pandas as pd

FILE = "predictions.safetensors"
CONFUSION_FILE = "confusion.csv"
TENSORS = ("labels", "predicted", "confidence")
MAX_CLASSES = 100_000
"""More than any data set has."""

PredictionsByRow = Mapping[str, Mapping[str, Predictions]]
"""By "zero-shot CLIP" or "last round", and then by split, ``<role>/<domain>``."""


def write_predictions(run: Path, predictions: PredictionsByRow) -> None:
    """Writes the predictions into a run's folder."""
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


def read_predictions(run: Path, num_classes: int = MAX_CLASSES) -> PredictionsByRow:
    """Returns the predictions in a run's folder, which may be a stranger's; empty if it has no such file.

    Raises:
        UserError: if the file is damaged, or has a class beyond those that train, or the split's own.
    """
    path = run / FILE
    if not path.is_file():
        return {}
    tensors, header = read_tensors(path, framework="numpy")
    # Names of splits hold slashes themselves, so the header says which there are.
    predictions: dict[str, dict[str, Predictions]] = {}
    try:
        for row, by_split in header["splits"].items():
            for split, names in by_split.items():
                labels, predicted, confidence = (tensors[f"{row}/{split}/{name}"] for name in TENSORS)
                class_names = tuple(map(str, names["class_names"]))
                _check(labels, predicted, confidence, len(class_names) or num_classes)
                clients = tuple(map(str, names["clients"]))
                of_split = Predictions(labels, predicted, confidence, clients, class_names)
                predictions.setdefault(row, {})[split] = of_split
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{path} holds no predictions of a run. Make the run again, or remove the file.") from error
    return predictions


def _check(labels: NDArray[Any], predicted: NDArray[Any], confidence: NDArray[Any], num_classes: int) -> None:
    """Raises ValueError if arrays are no predictions of these classes."""
    is_whole = labels.dtype == predicted.dtype == np.int32 and predicted.size > 0
    if not is_whole or predicted.shape != confidence.shape or predicted.shape[1:] != labels.shape or labels.ndim != 1:
        raise ValueError("other shapes or types")
    # -1 is the label of images of no class.
    if min(labels.min() + 1, predicted.min()) < 0 or max(labels.max(), predicted.max()) >= num_classes:
        raise ValueError("another class")


def confusions(predictions: PredictionsByRow, class_names: Sequence[str]) -> pd.DataFrame:
    """Returns a row for each pair of a true and a predicted class that has images, over all states.

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
