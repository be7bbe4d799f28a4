"""Predicted classes of all test and held-out images: ``predictions.safetensors`` and ``confusion.csv``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvlp.core.predictions import Predictions, count_confusions
from fedvlp.core.roles import SERVED
from fedvlp.utils.tensor_files import read_tensors, write_tensors

if TYPE_CHECKING:
    import pandas as pd

FILE = "predictions.safetensors"
CONFUSION_FILE = "confusion.csv"
TENSORS = ("labels", "predicted", "confidence")

PredictionsByRow = Mapping[str, Mapping[str, Predictions]]
"""Predictions by row, such as "zero-shot CLIP" or "last round", then by split, ``<role>/<domain>``."""


def write_predictions(run: Path, predictions: PredictionsByRow) -> None:
    """Write the predictions to a run folder."""
    import torch  # reading runs does not need it

    tensors: dict[str, torch.Tensor] = {}
    splits: dict[str, dict[str, dict[str, list[Any]]]] = {}
    for row, by_split in predictions.items():
        for split, values in by_split.items():
            tensors |= {f"{row}/{split}/{name}": torch.from_numpy(getattr(values, name)) for name in TENSORS}
            names: dict[str, list[Any]] = {"clients": list(values.clients), "class_names": list(values.class_names)}
            if (values.positive, values.threshold) != (1, 0.5):
                names["two_classes"] = [values.positive, values.threshold]
            if values.thresholds:
                names["thresholds"] = list(values.thresholds)
            for name, scores in values.scores.items():
                tensors[f"{row}/{split}/scores/{name}"] = torch.from_numpy(scores)
                names.setdefault("scores", []).append(name)
            if values.groups is not None:
                tensors[f"{row}/{split}/groups"] = torch.from_numpy(values.groups)
            splits.setdefault(row, {})[split] = names
    # After a power failure, the run can be evaluated again, so do not wait for the disk.
    write_tensors(run / FILE, tensors, {"splits": splits}, is_durable=False)


def read_predictions(run: Path) -> PredictionsByRow:
    """Read the predictions in a run folder; empty without a file. Raise UserError if the file is damaged."""
    path = run / FILE
    if not path.is_file():
        return {}
    tensors, header = read_tensors(path, framework="numpy")
    # The header lists the splits, because their names contain slashes.
    predictions: dict[str, dict[str, Predictions]] = {}
    for row, by_split in header["splits"].items():
        for split, names in by_split.items():
            labels, predicted, confidence = (tensors[f"{row}/{split}/{name}"] for name in TENSORS)
            positive, threshold = names.get("two_classes", (1, 0.5))
            lists = tuple(names["clients"]), tuple(names["class_names"])
            thresholds = tuple(names.get("thresholds", ()))
            groups = tensors.get(f"{row}/{split}/groups")
            scores = {name: tensors[f"{row}/{split}/scores/{name}"] for name in names.get("scores", ())}
            values = Predictions(labels, predicted, confidence, *lists, positive, threshold, thresholds, groups, scores)
            predictions.setdefault(row, {})[split] = values
    return predictions


def confusions(predictions: PredictionsByRow, class_names: Sequence[str]) -> pd.DataFrame:
    """Count images by true and predicted class, over all states; pairs without images have no row.

    Only splits that neither train nor select are counted. For 345 classes, most of the 119,025 pairs are empty.
    """
    import pandas as pd  # imported late, because training does not need it at the start

    rows: list[tuple[str, str, str, str, int]] = []
    for row, by_split in predictions.items():
        for split, values in by_split.items():
            names = values.class_names or class_names
            if split.split("/")[0] in SERVED and not values.has_several_labels:
                for (true, predicted), images in sorted(count_confusions(values).items()):
                    rows.append((row, split, str(names[true]), str(names[predicted]), images))
    return pd.DataFrame(rows, columns=["row", "split", "true", "predicted", "images"])
