"""Write class probabilities of image files as CSV, and scores of predictions as JSON."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning import Fabric
from torch import Tensor

from fedvlp.core.metrics import all_scores, single_state
from fedvlp.core.module import FederatedModule
from fedvlp.core.predictions import (
    LABEL_SCORES,
    LABEL_SCORES_LEGEND,
    TWO_CLASSES,
    TWO_CLASSES_LEGEND,
    Predictions,
    count_confusions,
    f1_thresholds,
    with_thresholds,
    youden_threshold,
)
from fedvlp.core.protocols import FederatedData
from fedvlp.core.roles import OUT_OF_DISTRIBUTION
from fedvlp.core.several_labels import SEPARATOR
from fedvlp.utils.files import atomic_write, check_replaceable, write_json
from fedvlp.utils.text_table import text_table

LABELLED = "labelled"
"""The role of image files in folders with the name of a class."""


@torch.no_grad()
def predict_images(
    module: FederatedModule, fabric: Fabric, batches: Iterable[tuple[Sequence[Path], Tensor]], output: Path
) -> Predictions:
    """Write a CSV with path, class or labels, and probabilities of each image, completely or not at all.

    ``batches`` are paths of images with their pixels [B, 3, V, V]. The predictions have the same order, and labels -1.
    """
    # One batch at a time, so that a folder of any size fits into memory.
    module.eval()
    predicted: list[Tensor] = []
    confidence: list[Tensor] = []
    output.parent.mkdir(parents=True, exist_ok=True)
    with (
        atomic_write(output) as temporary,
        # File names may contain bytes that are not UTF-8. They are written unchanged.
        open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(["path", "labels" if module.has_several_labels else "class", *module.label_names])
        for paths, pixels in batches:
            with fabric.autocast():
                probabilities = module.predict_step(fabric.to_device(pixels), 0).float().cpu()  # [B, C]
            for path, row in zip(paths, probabilities, strict=True):
                name = SEPARATOR.join(module.named_probabilities(row))
                writer.writerow([str(path), name, *(f"{value:.6f}" for value in row.tolist())])
            predicted.append(module.choose(probabilities))
            confidence.append(probabilities if module.has_several_labels else probabilities.amax(-1))
    classes = torch.cat(predicted)
    return single_state(torch.full_like(classes, -1, dtype=torch.int32), classes, torch.cat(confidence))


def describe_prediction(predictions: Predictions, class_names: Sequence[str]) -> str:
    """Format a single image's class or labels, with probabilities."""
    predicted, confidence = predictions.predicted.ravel(), predictions.confidence.ravel().tolist()
    chosen = {class_names[predicted[0]]: confidence[0]}
    if predictions.has_several_labels:
        chosen = {name: confidence[index] for index, name in enumerate(class_names) if predicted[index]}
    return ", ".join(f"{name} ({100 * value:.1f} %)" for name, value in chosen.items()) or "no label"


def write_scores(
    path: Path, header: Mapping[str, Any], predictions: Mapping[str, Predictions], class_names: Sequence[str]
) -> dict[str, Any]:
    """Write ``header``, the scores of each split and the confusions of classes as JSON; return the scores."""
    scores = all_scores(predictions, class_names)
    confusion: dict[str, dict[str, dict[str, int]]] = {}
    for split, split_predictions in predictions.items():
        # Images out of distribution have no true class.
        if split.split("/")[0] == OUT_OF_DISTRIBUTION or split_predictions.has_several_labels:
            continue
        names = split_predictions.class_names or class_names
        confusion[split] = {}
        for (true, predicted), images in sorted(count_confusions(split_predictions).items()):
            # Sorted, so that equal predictions give equal files.
            confusion[split].setdefault(names[true], {})[names[predicted]] = images
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**header, "metrics": scores, "confusion": confusion})
    return scores


def write_folder_scores(
    csv: Path, by_domain: Mapping[str, Predictions], class_names: Sequence[str], other_folders: Sequence[str]
) -> list[str]:
    """Write the scores of images in class folders next to the CSV, and describe them in lines.

    ``other_folders`` are folders without a class name. Their images are not scored.
    """
    if not by_domain:
        names = ", ".join(map(repr, other_folders))
        return [f"not scored, because these folders have no class name: {names}"] if other_folders else []
    path = csv.with_name(f"{csv.stem}_scores.json")
    check_replaceable(path)
    by_split = {f"{LABELLED}/{domain}": predictions for domain, predictions in by_domain.items()}
    scores = write_scores(path, {}, by_split, class_names)
    lines: list[str] = []
    if len(by_domain) > 1:
        lines += [f"{domain}: {scores[f'{LABELLED}/{domain}']['accuracy']:.2f} %" for domain in by_domain]
        lines.append("mean over these folders:")
    mean = scores[LABELLED]
    low, high = mean["intervals"]["accuracy"]
    return [
        *lines,
        f"accuracy: {mean['accuracy']:.2f} % (95 %: {low:.2f} to {high:.2f})",
        f"balanced accuracy: {mean['balanced_accuracy']:.2f} %",
        f"macro F1: {mean['macro_f1']:.2f} %",
        f"calibration error: {mean['calibration_error']:.2f} points",
        *describe_scores(scores),
        f"scores -> {path}",
    ]


def describe_scores(scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Format scores of two classes or of labels by role, with intervals, as a table and its legend; else no lines."""
    rows = {title: row for title, row in scores.items() if "/" not in title and {"threshold", "micro_f1"} & row.keys()}
    has_labels = any("micro_f1" in row for row in rows.values())
    titles = LABEL_SCORES if has_labels else {name: title for title, name in TWO_CLASSES.items()}
    unit = "groups" if any("groups" in row for row in scores.values()) else "images"
    table = [[f"in % [95 % over {unit}]", *titles.values(), *([] if has_labels else ["threshold", "positive class"])]]
    for title, row in rows.items():
        cells = ["{:.1f} [{:.1f}, {:.1f}]".format(row[name], *row["intervals"][name]) for name in titles]
        cells += [] if has_labels else [f"{row['threshold']:.1f}", repr(row["positive_class"])]
        table.append([title, *cells])
    return [text_table(table), LABEL_SCORES_LEGEND if has_labels else TWO_CLASSES_LEGEND] if rows else []


def reported_predictions(predictions: Mapping[str, Predictions], data: FederatedData) -> dict[str, Predictions]:
    """Choose thresholds of labels or of two classes on validation splits, then remove these.

    Return nothing if no split has known classes.
    """
    if getattr(data, "several_labels", False):
        validation = [each for name, each in predictions.items() if name.split("/")[0] == "validation"]
        thresholds = f1_thresholds(validation) if validation else ()
        predictions = {name: with_thresholds(each, thresholds) for name, each in predictions.items()}
    elif len(data.class_names) == 2:
        positive = data.class_names.index(getattr(data, "positive_class", None) or data.class_names[1])
        own = {name: replace(each, positive=positive) for name, each in predictions.items() if not each.class_names}
        threshold = youden_threshold([each for name, each in own.items() if name.split("/")[0] == "validation"])
        predictions = {**predictions, **{name: replace(each, threshold=threshold) for name, each in own.items()}}
    tested = {name: value for name, value in predictions.items() if name.split("/")[0] != "validation"}
    return {} if all(name.split("/")[0] == OUT_OF_DISTRIBUTION for name in tested) else tested
