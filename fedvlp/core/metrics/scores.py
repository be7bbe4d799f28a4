"""All scores of some splits and of their roles, made to be written as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedvlp.core.metrics.bootstrap import Samples, interval, resample
from fedvlp.core.metrics.classes import class_scores, confusion_of
from fedvlp.core.metrics.confidence import calibration_error, detection, mean_of
from fedvlp.core.predictions import Predictions
from fedvlp.core.roles import OF_CLIENTS, OUT_OF_DISTRIBUTION

Scores = dict[str, Any]
OfSplits = Mapping[str, Predictions]
"""By split, ``<role>/<domain>``."""

AVERAGED = ("accuracy", "balanced_accuracy", "macro_f1", "calibration_error")
"""Scores of which a role has the mean over its domains."""


def all_scores(predictions: OfSplits, class_names: Sequence[str]) -> dict[str, Scores]:
    """Returns the scores of each split, then those of each role, in percent or points.

    Args:
        predictions: of all splits that are to be scored, and of images out of distribution, if there are any.
        class_names: the classes that train, in the order of the labels.
    """
    outside = {}
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
        of_role = {name: split_scores[name] for name in splits}
        role_scores[role] = _role_scores(of_role, splits, list(samples.values()))
        if role not in OF_CLIENTS:  # else domains are clients
            accuracies = {name.partition("/")[2]: scores["accuracy"] for name, scores in of_role.items()}
            role_scores[role]["worst_domain"] = _worst(accuracies)
    return split_scores | role_scores


def _split_scores(
    predictions: Predictions,
    samples: Mapping[str, Samples],
    outside: OfSplits,
    class_names: Sequence[str],
) -> Scores:
    classes = class_scores(confusion_of(predictions), len(class_names))
    detected = {name: detection(predictions, others) for name, others in outside.items()}
    return {
        "images": len(predictions.labels),
        "accuracy": predictions.accuracy,
        "balanced_accuracy": classes.balanced_accuracy,
        "macro_f1": classes.macro_f1,
        "calibration_error": calibration_error(predictions),
        "intervals": {name: interval(values) for name, values in samples.items()},
        **({OUT_OF_DISTRIBUTION: detected} if detected else {}),
        "class_accuracy": {
            name: float(classes.accuracy[label]) for label, name in enumerate(class_names) if classes.has_images[label]
        },
    }


def _role_scores(scores: Mapping[str, Scores], splits: OfSplits, samples: Sequence[Mapping[str, Samples]]) -> Scores:
    """Returns means over domains, the intervals of these means, and what is worst."""
    of_splits = list(scores.values())
    means: Scores = {name: mean_of(of_splits, name) for name in AVERAGED}
    means["intervals"] = {}
    for name in samples[0]:
        means["intervals"][name] = interval(np.mean([each[name] for each in samples], axis=0))
    if OUT_OF_DISTRIBUTION in of_splits[0]:
        means[OUT_OF_DISTRIBUTION] = _mean_detection([each[OUT_OF_DISTRIBUTION] for each in of_splits])
    clients = client_accuracies(list(splits.values()))
    return means | ({"worst_client": _worst(clients)} if clients else {})


def client_accuracies(splits: Sequence[Predictions]) -> dict[str, float]:
    """Returns each client's accuracy in percent: the mean over the splits of its domains, or measured with its state.

    Where all share one state, clients of the same domains are equal.
    """
    accuracies: dict[str, list[float]] = {}
    for predictions in splits:
        for client in predictions.clients:
            accuracies.setdefault(client, []).append(predictions.accuracy_of(client))
    return {client: statistics.fmean(values) for client, values in accuracies.items()}


def _worst(accuracies: Mapping[str, float]) -> Scores:
    """Returns the name with the lowest accuracy, the first of equals."""
    name = min(accuracies, key=lambda each: accuracies[each])
    return {"name": name, "accuracy": accuracies[name]}


def _mean_detection(of_splits: Sequence[Mapping[str, Mapping[str, float]]]) -> Scores:
    means: Scores = {}
    for name, scores in of_splits[0].items():
        of_name = [each[name] for each in of_splits]
        means[name] = {score: mean_of(of_name, score) for score in scores}
    return means
