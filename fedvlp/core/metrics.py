"""The scores of predicted classes: accuracy, of classes, of confidence, and intervals over images."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_calibration_error,
    binary_roc,
    multiclass_f1_score,
    multiclass_recall,
)

from fedvlp.core.predictions import Predictions, Samples, interval, percent, resample
from fedvlp.core.roles import OUT_OF_DISTRIBUTION, ROLES

Scores = dict[str, Any]
# By split, ``<role>/<domain>``.
BySplit = Mapping[str, Predictions]

# Confidences are rounded to multiples of 1 / GRID, float32's own step below 1, so that their sums are exact.
GRID = 2**24
# Scores of which a role has the mean over its domains.
AVERAGED = ("accuracy", "balanced_accuracy", "macro_f1", "calibration_error")


def single_state(labels: Int[Tensor, "N"], predicted: Int[Tensor, "N"], confidence: Float[Tensor, "N"]) -> Predictions:
    """Return the predictions of a single state, on the CPU."""
    finite = confidence.cpu().float().nan_to_num(0.0)
    return Predictions(labels.cpu().int().numpy(), predicted.cpu().int()[None].numpy(), finite[None].numpy())


def class_scores(predictions: Predictions, num_classes: int) -> Scores:
    """Compute scores that count each class the same, over all states, in percent.

    Returns:
        ``balanced_accuracy``, the mean recall of the classes that have images; ``macro_f1``, the mean F1 of those that
        have images or are predicted; ``class_accuracy``, the recall of each class that has images, by its label.
    """
    labels = torch.from_numpy(predictions.labels).expand(predictions.predicted.shape).flatten()
    predicted = torch.from_numpy(predictions.predicted).flatten()
    recall = 100 * multiclass_recall(predicted, labels, num_classes, average="none", validate_args=False).double()
    f1 = 100 * multiclass_f1_score(predicted, labels, num_classes, average="none", validate_args=False).double()
    has_images = labels.bincount(minlength=num_classes) > 0
    is_predicted = predicted.bincount(minlength=num_classes) > 0
    return {
        "balanced_accuracy": float(recall[has_images].mean()),
        "macro_f1": float(f1[has_images | is_predicted].mean()),
        "class_accuracy": {label: float(recall[label]) for label in range(num_classes) if has_images[label]},
    }


def calibration_error(predictions: Predictions, bins: int = 15) -> float:
    """The expected calibration error (Guo et al., ICML 2017, Eq. 3), in points; of several states the mean.

    Images are put into bins of equal width by their confidence; the error is the mean over images of the distance
    between their bin's mean confidence and its accuracy. A bin has its lower bound, and the last one 1 as well.
    """
    is_right = torch.from_numpy(predictions.predicted == predictions.labels)
    # Sums of multiples of a power of two are exact, so they do not depend on the order of images.
    confidence = torch.from_numpy(predictions.confidence).double().mul(GRID).round().div(GRID)
    below_one = confidence.clamp(max=1 - torch.finfo(torch.float64).eps)  # else torchmetrics gives 1 a bin of its own
    errors: list[float] = []
    for of_state, right in zip(below_one, is_right, strict=True):
        errors.append(float(binary_calibration_error(of_state, right.int(), bins, "l1", validate_args=False)))
    return 100 * statistics.fmean(errors)


def detection(inside: Predictions, outside: Predictions) -> dict[str, float]:
    """Measure how well the maximum softmax probability tells images ``inside`` the classes from those ``outside``.

    Each state's own images are compared, and states are averaged; a single state measures both kinds of images for all
    (Hendrycks & Gimpel).

    Returns:
        ``auroc``, the area under the receiver operating characteristic with images of the classes as positives, and
        ``fpr_at_95``, the share of other images above the highest threshold that keeps 95 % of the classes' images;
        both in percent.
    """
    aurocs: list[float] = []
    false_positive_rates: list[float] = []
    for row, of_inside in enumerate(inside.confidence):
        # States of clients are compared with themselves; a single state measured both kinds.
        has_own = row < len(inside.clients) and inside.clients[row] in outside.clients
        of_outside = outside.confidence[outside.of_client(inside.clients[row]) if has_own else 0]
        confidence = torch.from_numpy(np.concatenate([of_inside, of_outside]))
        is_inside = (torch.arange(len(confidence)) < len(of_inside)).int()
        false_positives, true_positives, _ = binary_roc(confidence, is_inside, validate_args=False)
        aurocs.append(float(binary_auroc(confidence, is_inside, validate_args=False)))
        false_positive_rates.append(float(false_positives[true_positives >= 0.95].min()))
    return {"auroc": 100 * statistics.fmean(aurocs), "fpr_at_95": 100 * statistics.fmean(false_positive_rates)}


def all_scores(predictions: BySplit, class_names: Sequence[str]) -> dict[str, Scores]:
    """Compute the scores of each split, then of each role, in percent or points, as JSON can hold them.

    ``predictions`` may include images out of distribution. ``class_names`` are the classes that train.
    """
    outside: dict[str, Predictions] = {}
    by_role: dict[str, dict[str, Predictions]] = {}
    for name, of_split in predictions.items():
        role, _, domain = name.partition("/")
        if role == OUT_OF_DISTRIBUTION:
            outside[domain] = of_split
        else:
            by_role.setdefault(role, {})[name] = of_split
    split_scores: dict[str, Scores] = {}
    role_scores: dict[str, Scores] = {}
    for role, splits in by_role.items():
        samples = {}
        for name, of_split in splits.items():
            names = of_split.class_names or class_names
            samples[name] = resample(of_split, len(names), name)
            split_scores[name] = _split_scores(of_split, samples[name], outside, names)
        # A role's intervals are those of its mean, from the resamples of all its domains together.
        of_role = {name: split_scores[name] for name in splits}
        role_scores[role] = _role_scores(of_role, splits, list(samples.values()))
        # Images that a user labels by folders have no role of a run. By client, domains are clients.
        if role not in ROLES or not ROLES[role].by_client:
            accuracies = {name.partition("/")[2]: scores["accuracy"] for name, scores in of_role.items()}
            role_scores[role]["worst_domain"] = _worst(accuracies)
    return split_scores | role_scores


def _split_scores(
    predictions: Predictions, samples: Mapping[str, Samples], outside: BySplit, class_names: Sequence[str]
) -> Scores:
    of_classes = class_scores(predictions, len(class_names))
    by_label = of_classes.pop("class_accuracy")
    detected = {name: detection(predictions, others) for name, others in outside.items()}
    return {
        "images": len(predictions.labels),
        "accuracy": predictions.accuracy,
        **of_classes,
        "calibration_error": calibration_error(predictions),
        "intervals": {name: interval(values) for name, values in samples.items()},
        **({OUT_OF_DISTRIBUTION: detected} if detected else {}),
        "class_accuracy": {class_names[label]: accuracy for label, accuracy in by_label.items()},
    }


def _role_scores(scores: Mapping[str, Scores], splits: BySplit, samples: Sequence[Mapping[str, Samples]]) -> Scores:
    of_splits = list(scores.values())
    means: Scores = {name: _mean_of(of_splits, name) for name in AVERAGED}
    means["intervals"] = {}
    for name in samples[0]:
        means["intervals"][name] = interval(np.mean([each[name] for each in samples], axis=0))
    if OUT_OF_DISTRIBUTION in of_splits[0]:
        by_domain: Scores = {}
        for domain, detected in of_splits[0][OUT_OF_DISTRIBUTION].items():
            of_domain = [each[OUT_OF_DISTRIBUTION][domain] for each in of_splits]
            by_domain[domain] = {score: _mean_of(of_domain, score) for score in detected}
        means[OUT_OF_DISTRIBUTION] = by_domain
    clients = client_accuracies(list(splits.values()))
    return means | ({"worst_client": _worst(clients)} if clients else {})


def _mean_of(scores: Sequence[Mapping[str, float]], name: str) -> float:
    return statistics.fmean(each[name] for each in scores)


def client_accuracies(splits: Sequence[Predictions]) -> dict[str, float]:
    """Each client's accuracy in percent: the mean over the splits of its domains, or measured with its state.

    Where all share one state, clients of the same domains are equal.
    """
    accuracies: dict[str, list[float]] = {}
    for predictions in splits:
        for client in predictions.clients:
            is_right = predictions.predicted[predictions.of_client(client)] == predictions.labels
            accuracies.setdefault(client, []).append(percent(int(is_right.sum()), len(is_right)))
    return {client: statistics.fmean(values) for client, values in accuracies.items()}


def _worst(accuracies: Mapping[str, float]) -> Scores:
    """The name with the lowest accuracy, the first of equals."""
    name = min(accuracies, key=lambda each: accuracies[each])
    return {"name": name, "accuracy": accuracies[name]}
