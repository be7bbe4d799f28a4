"""What was measured, as JSON: accuracies, what is measured beside them, and what images were taken for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlp.core.metrics import all_scores, confusion_of
from fedvlp.core.predictions import Predictions
from fedvlp.core.roles import OUT_OF_DISTRIBUTION
from fedvlp.utils.files import check_replaceable, write_json

LABELLED = "labelled"
"""The role of image files whose folders say their classes."""


def write_scores(
    path: Path,
    about: Mapping[str, Any],
    predictions: Mapping[str, Predictions],
    class_names: Sequence[str],
) -> dict[str, Any]:
    """Writes what is known of images and what is computed of their predictions.

    Args:
        path: the file.
        about: what else it shall hold, such as the accuracies.
        predictions: by split.
        class_names: the classes that train, in the order of the labels.

    Returns:
        The scores by split and role.
    """
    scores = all_scores(predictions, class_names)
    counted = {
        name: _by_names(of_split, of_split.class_names or class_names)
        for name, of_split in predictions.items()
        if name.split("/")[0] != OUT_OF_DISTRIBUTION
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**about, "metrics": scores, "confusion": counted})
    return scores


def write_folder_scores(csv: Path, by_domain: Mapping[str, Predictions], class_names: Sequence[str]) -> list[str]:
    """Writes the scores of image files whose classes their folders say, beside the table of their predictions.

    Args:
        csv: the table.
        by_domain: what the images of each domain were taken for.
        class_names: the classes, in the order of the labels.

    Returns:
        What a reader wants of them, a line each.
    """
    path = csv.with_name(f"{csv.stem}_scores.json")
    check_replaceable(path)
    by_split = {f"{LABELLED}/{domain}": of_domain for domain, of_domain in by_domain.items()}
    scores = write_scores(path, {}, by_split, class_names)
    accuracies = {name: scores[f"{LABELLED}/{name}"]["accuracy"] for name in by_domain}
    domains = [f"{name}: {accuracy:.2f} %" for name, accuracy in accuracies.items()]
    several = [*domains, "mean over these folders:"] if len(domains) > 1 else []
    return [*several, *_lines(scores[LABELLED]), f"scores -> {path}"]


def without_validation(predictions: Mapping[str, Predictions]) -> dict[str, Predictions]:
    """Returns the predictions of images that choose nothing, and of images out of distribution beside them."""
    found = {name: each for name, each in predictions.items() if name.split("/")[0] != "validation"}
    return {} if all(name.split("/")[0] == OUT_OF_DISTRIBUTION for name in found) else found


def _by_names(predictions: Predictions, class_names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Returns the number of images by the names of their true and their predicted class; only pairs with images."""
    found: dict[str, dict[str, int]] = {}
    for (true, predicted), images in sorted(confusion_of(predictions).items()):
        found.setdefault(class_names[true], {})[class_names[predicted]] = images
    return found


def _lines(scores: Mapping[str, Any]) -> list[str]:
    """Returns what a reader wants of the scores of a split or role, a line each.

    >>> intervals = {"accuracy": [40.0, 60.0]}
    >>> found = {"accuracy": 50.0, "balanced_accuracy": 45.0, "macro_f1": 44.0, "calibration_error": 12.5}
    >>> print(*_lines({**found, "intervals": intervals})[:3], sep=", ")
    accuracy: 50.00 % (95 %: 40.00 to 60.00), balanced accuracy: 45.00 %, macro F1: 44.00 %
    """
    low, high = scores["intervals"]["accuracy"]
    return [
        f"accuracy: {scores['accuracy']:.2f} % (95 %: {low:.2f} to {high:.2f})",
        f"balanced accuracy: {scores['balanced_accuracy']:.2f} %",
        f"macro F1: {scores['macro_f1']:.2f} %",
        f"calibration error: {scores['calibration_error']:.2f} points",
    ]
