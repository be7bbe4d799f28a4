"""``predictions.safetensors`` of a run: what each image on which nobody trained was taken for, and how surely."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedvlp.core.predictions import Predictions
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import Tensors, read_tensors, write_tensors

FILE = "predictions.safetensors"
TENSORS = ("labels", "predicted", "confidence")

OfRows = Mapping[str, Mapping[str, Predictions]]
"""By ``ZERO_SHOT_ROW`` or ``LAST_ROW`` of :mod:`fedvlp.results.confusion`, and then by split, ``<role>/<domain>``."""


def write_predictions(run: Path, predictions: OfRows) -> None:
    """Writes the file into a run's folder."""
    tensors: Tensors = {}
    splits: dict[str, dict[str, dict[str, list[str]]]] = {}
    for row, by_split in predictions.items():
        for split, of_split in by_split.items():
            tensors |= {f"{row}/{split}/{name}": getattr(of_split, name) for name in TENSORS}
            names = {"clients": list(of_split.clients), "class_names": list(of_split.class_names)}
            splits.setdefault(row, {})[split] = names
    # Whoever loses it in a power failure measures the run again, as with the other files of results.
    write_tensors(run / FILE, tensors, {"splits": splits}, is_durable=False)


def read_predictions(run: Path) -> OfRows:
    """Returns what a run wrote; nothing if it has no such file.

    Raises:
        UserError: if the file is damaged.
    """
    path = run / FILE
    if not path.is_file():
        return {}
    tensors, header = read_tensors(path)
    found: dict[str, dict[str, Predictions]] = {}
    try:
        for row, by_split in header["splits"].items():
            for split, names in by_split.items():
                of_split = {name: tensors[f"{row}/{split}/{name}"] for name in TENSORS}
                _check_shapes(of_split)
                found.setdefault(row, {})[split] = Predictions(
                    **of_split, clients=tuple(names["clients"]), class_names=tuple(names["class_names"])
                )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{path} holds no predictions of a run. Make the run again, or remove the file.") from error
    return found


def _check_shapes(of_split: Tensors) -> None:
    """Raises ValueError unless each state took each image for something."""
    shape = of_split["predicted"].shape
    if shape[1:] != of_split["labels"].shape or shape != of_split["confidence"].shape or not all(shape):
        raise ValueError(f"Expected [states, images] of some; got {tuple(shape)}.")
