"""All scores of some splits and of their roles, made to be written as JSON."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedvlp.core.confusion import Confusion, count_confusion
from fedvlp.core.metrics.bootstrap import Samples, interval, resample
from fedvlp.core.metrics.classes import class_scores
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
    found: dict[str, Scores] = {}
    of_roles: dict[str, Scores] = {}
    for role, splits in by_role.items():
        samples = {}
        for name, of_split in splits.items():
            names = of_split.class_names or class_names
            samples[name] = resample(of_split, len(names), name)
            found[name] = _split_scores(of_split, samples[name], outside, names)
        of_roles[role] = _role_scores({name: found[name] for name in splits}, splits, list(samples.values()))
        if role not in OF_CLIENTS:  # else domains are clients
            of_roles[role]["worst_domain"] = _worst(
                {name.partition("/")[2]: found[name]["accuracy"] for name in splits}
            )
    return found | of_roles


def confusion_of(predictions: Predictions) -> Confusion:
    """Returns how many images there are of each true and predicted class, over all states."""
    labels = predictions.labels.long()
    return sum((count_confusion(labels, each.long()) for each in predictions.predicted), Counter())


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
    found: Scores = {name: mean_of(of_splits, name) for name in AVERAGED}
    found["intervals"] = {}
    for name in samples[0]:
        found["intervals"][name] = interval(np.mean([each[name] for each in samples], axis=0))
    if OUT_OF_DISTRIBUTION in of_splits[0]:
        found[OUT_OF_DISTRIBUTION] = _mean_detection([each[OUT_OF_DISTRIBUTION] for each in of_splits])
    clients = client_accuracies(list(splits.values()))
    return found | ({"worst_client": _worst(clients)} if clients else {})


def client_accuracies(splits: Sequence[Predictions]) -> dict[str, float]:
    """Returns each client's accuracy in percent: the mean over the splits of its domains, or measured with its state.

    Where all share one state, clients of the same domains are equal.
    """
    found: dict[str, list[float]] = {}
    for predictions in splits:
        for client in predictions.clients:
            found.setdefault(client, []).append(predictions.accuracy_of(client))
    return {client: statistics.fmean(values) for client, values in found.items()}


def _worst(accuracies: Mapping[str, float]) -> Scores:
    """Returns whose accuracy is the lowest, the first of equals."""
    name = min(accuracies, key=lambda each: accuracies[each])
    return {"name": name, "accuracy": accuracies[name]}


def _mean_detection(of_splits: Sequence[Mapping[str, Mapping[str, float]]]) -> Scores:
    found: Scores = {}
    for name, scores in of_splits[0].items():
        of_name = [each[name] for each in of_splits]
        found[name] = {score: mean_of(of_name, score) for score in scores}
    return found
