"""Scores of predictions: accuracy, scores by class, calibration, detection, and intervals over images."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_roc, multiclass_f1_score, multiclass_recall

from fedvlp.core.predictions import (
    TWO_CLASSES,
    Predictions,
    Samples,
    calibration_errors,
    interval,
    resample,
    several_label_scores,
    two_class_scores,
)
from fedvlp.core.roles import OUT_OF_DISTRIBUTION, ROLES

Scores = dict[str, Any]
# Predictions by split, ``<role>/<domain>``.
BySplit = Mapping[str, Predictions]

# Scores that a role averages over its domains, if all of them have the score.
AVERAGED = (
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "micro_f1",
    "calibration_error",
    *TWO_CLASSES.values(),
    "threshold",
)


def single_state(labels: Tensor, predicted: Tensor, confidence: Tensor) -> Predictions:
    """Make the predictions of a single state, on the CPU: tensors [N], or [N, L] for targets of several labels."""
    dtype = torch.int8 if labels.ndim == 2 else torch.int32
    finite = confidence.cpu().float().nan_to_num(0.0)
    truth = labels.nan_to_num(-1.0).cpu().to(dtype)
    return Predictions(truth.numpy(), predicted.cpu().to(dtype)[None].numpy(), finite[None].numpy())


def class_scores(predictions: Predictions, num_classes: int) -> Scores:
    """Compute scores that weight all classes equally, over all states, in percent.

    Returns:
        ``balanced_accuracy``, the mean recall of classes with images; ``macro_f1``, the mean F1 of classes with images
        or predictions; ``class_accuracy``, the recall of each class with images, by label.
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


def detection(inside: Predictions, outside: Predictions) -> dict[str, float]:
    """Measure how well the confidence and other scores separate images of the classes from other images.

    The confidence is the maximum softmax probability (Hendrycks & Gimpel). The results are averaged over the states of
    ``inside``. Each state is compared with the same client's predictions of ``outside``, or with the first state's if
    there are none.

    Returns:
        ``auroc``, the area under the receiver operating characteristic with images of the classes as positives.
        ``fpr_at_95``, the share of other images above the highest threshold that keeps 95 % of the classes' images.
        Both are in percent. Results of other scores have the score's name in front, such as ``mcm_auroc``.
    """
    pairs = {"": (inside.confidence, outside.confidence)}
    for name in inside.scores.keys() & outside.scores.keys():
        pairs[f"{name}_"] = inside.scores[name], outside.scores[name]
    results: Scores = {}
    for name, (inside_scores, outside_scores) in sorted(pairs.items()):
        aurocs: list[float] = []
        false_positive_rates: list[float] = []
        for row, values in enumerate(inside_scores):
            has_own = row < len(inside.clients) and inside.clients[row] in outside.clients
            others = outside_scores[outside.state_index(inside.clients[row]) if has_own else 0]
            # Ranks, because torchmetrics would take the sigmoid of scores above 1.
            ranks = torch.from_numpy(np.unique(np.concatenate([values, others]), return_inverse=True)[1])
            is_inside = (torch.arange(len(ranks)) < len(values)).int()
            share = ranks / len(ranks)
            false_positives, true_positives, _ = binary_roc(share, is_inside, validate_args=False)
            aurocs.append(float(binary_auroc(share, is_inside, validate_args=False)))
            false_positive_rates.append(float(false_positives[true_positives >= 0.95].min()))
        results[f"{name}auroc"] = 100 * statistics.fmean(aurocs)
        results[f"{name}fpr_at_95"] = 100 * statistics.fmean(false_positive_rates)
    return results


def all_scores(predictions: BySplit, class_names: Sequence[str]) -> dict[str, Scores]:
    """Compute the scores of each split, then of each role, in percent or points, as JSON values.

    ``predictions`` may include images out of distribution. ``class_names`` are the training classes.
    """
    outside: dict[str, Predictions] = {}
    by_role: dict[str, dict[str, Predictions]] = {}
    for name, split in predictions.items():
        role, _, domain = name.partition("/")
        if role == OUT_OF_DISTRIBUTION:
            outside[domain] = split
        else:
            by_role.setdefault(role, {})[name] = split
    split_scores: dict[str, Scores] = {}
    role_scores: dict[str, Scores] = {}
    for role, splits in by_role.items():
        samples = {}
        for name, split in splits.items():
            names = split.class_names or class_names
            if split.has_several_labels:
                scores, samples[name], precision = several_label_scores(split, name)
                by_label = {label: value for label, value in zip(names, precision, strict=True) if value == value}
                ends = {score: interval(values) for score, values in samples[name].items()}
                split_scores[name] = {**_counts(split), **scores, "intervals": ends, "class_accuracy": by_label}
                continue
            two_classes, drawn = two_class_scores(split, name, names)
            error, *errors = calibration_errors(split, name)
            samples[name] = resample(split, len(names), name) | {"calibration_error": np.asarray(errors)} | drawn
            measured = {"calibration_error": float(error), **two_classes}
            split_scores[name] = _split_scores(split, samples[name], outside, names) | measured
        # A role's intervals are intervals of its mean, from the joint resamples of all its domains.
        by_split = {name: split_scores[name] for name in splits}
        role_scores[role] = _role_scores(by_split, splits, list(samples.values()))
        # Images in class folders of a user have none of these roles. Splits by client have no domains.
        if role not in ROLES or not ROLES[role].by_client:
            accuracies = {name.partition("/")[2]: scores["accuracy"] for name, scores in by_split.items()}
            role_scores[role]["worst_domain"] = _worst(accuracies)
    return split_scores | role_scores


def _split_scores(
    predictions: Predictions, samples: Mapping[str, Samples], outside: BySplit, class_names: Sequence[str]
) -> Scores:
    by_class = class_scores(predictions, len(class_names))
    by_label = by_class.pop("class_accuracy")
    detected = {name: detection(predictions, others) for name, others in outside.items()}
    return {
        **_counts(predictions),
        "accuracy": predictions.accuracy,
        **by_class,
        "intervals": {name: interval(values) for name, values in samples.items()},
        **({OUT_OF_DISTRIBUTION: detected} if detected else {}),
        "class_accuracy": {class_names[label]: accuracy for label, accuracy in by_label.items()},
    }


def _counts(split: Predictions) -> Scores:
    groups = {} if split.groups is None else {"groups": len(np.unique(split.groups))}
    return {"images": len(split.labels), **groups}


def _role_scores(scores: Mapping[str, Scores], splits: BySplit, samples: Sequence[Mapping[str, Samples]]) -> Scores:
    split_scores = list(scores.values())
    common = [name for name in AVERAGED if all(name in split for split in split_scores)]
    means: Scores = {name: _average(split_scores, name) for name in common}
    means |= {"positive_class": split_scores[0]["positive_class"]} if "threshold" in common else {}
    means["intervals"] = {}
    for name in filter(common.__contains__, samples[0]):
        means["intervals"][name] = interval(np.mean([sample[name] for sample in samples], axis=0))
    if OUT_OF_DISTRIBUTION in split_scores[0]:
        by_domain: Scores = {}
        for domain, detected in split_scores[0][OUT_OF_DISTRIBUTION].items():
            domain_scores = [split[OUT_OF_DISTRIBUTION][domain] for split in split_scores]
            by_domain[domain] = {score: _average(domain_scores, score) for score in detected}
        means[OUT_OF_DISTRIBUTION] = by_domain
    clients = client_accuracies(list(splits.values()))
    return means | ({"worst_client": _worst(clients)} if clients else {})


def _average(scores: Sequence[Mapping[str, float]], name: str) -> float:
    return statistics.fmean(score[name] for score in scores)


def client_accuracies(splits: Sequence[Predictions]) -> dict[str, float]:
    """Compute each client's accuracy in percent, averaged over the splits of its domains.

    If all clients share one state, clients of the same domains have equal accuracies.
    """
    accuracies: dict[str, list[float]] = {}
    for predictions in splits:
        for client in predictions.clients:
            value = predictions.accuracy_by_state[predictions.state_index(client)]
            accuracies.setdefault(client, []).append(value)
    return {client: statistics.fmean(values) for client, values in accuracies.items()}


def _worst(accuracies: Mapping[str, float]) -> Scores:
    name = min(accuracies, key=lambda name: accuracies[name])
    return {"name": name, "accuracy": accuracies[name]}
