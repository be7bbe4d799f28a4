"""Scores for imbalanced classes: balanced accuracy, chance level, and accuracy of the largest class."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvlp.core.predictions import LEVEL, Predictions
from fedvlp.core.roles import ROLES

ClassCounts = Mapping[str, Sequence[float]]
"""By class of a split: the number of its images, of correct ones among them, and of images predicted as the class."""
Balance = Mapping[str, Mapping[str, Any]]
"""Results of :func:`class_balance`, by split and by role."""

COLUMNS = {"balanced": "balanced_accuracy", "largest class": "largest_class"}
"""Titles of additional columns in tables of imbalanced classes, and their scores."""
TAIL = {name: f"{name}_accuracy" for name in ("head", "medium", "tail")}
"""Titles of columns in tables of long-tailed classes, and their scores."""
TAIL_LEGEND = "head, medium, tail: mean accuracies of the classes with most, medium and fewest training images, thirds"
UNAVAILABLE = "balanced accuracy is not available, since a site's policy does not allow counts by class"
IMBALANCE = 5.0
"""Classes are imbalanced if the largest class is at least so many percentage points above chance."""
ONE_CLASS = 95.0
"""Predictions are one-sided if more than this percentage goes to one class."""


def count_classes(predictions: Predictions, class_names: Sequence[str]) -> ClassCounts:
    """Count images by true and by predicted class, averaged over states.

    >>> labels, predicted = np.int32([0, 0, 1]), np.int32([[0, 0, 0]])
    >>> count_classes(Predictions(labels, predicted, np.ones((1, 3), np.float32)), ["intact", "broken"])
    {'intact': [2.0, 2.0, 3.0], 'broken': [1.0, 0.0, 0.0]}
    """
    labels = np.broadcast_to(predictions.labels, predictions.predicted.shape)
    kinds = (labels, labels[labels == predictions.predicted], predictions.predicted)
    counts = np.stack([np.bincount(kind.ravel(), minlength=len(class_names)) for kind in kinds], axis=1)
    return dict(zip(class_names, (counts / len(predictions.predicted)).tolist(), strict=True))


def class_balance(counts: Mapping[str, ClassCounts], with_macro_f1: bool = False) -> Balance:
    """Compute scores by class for each split, and for each role over its splits, all in percent.

    The 95 % interval of balanced accuracy models the correct images of each class as independent binomial counts. It is
    the interval of Price and Bonett (Computational Statistics & Data Analysis 45, 2004) for a linear function of m
    proportions. It adds 2/m correct and 2/m wrong images to each class, so its width is not zero even if all or none of
    the images are correct. Images that several clients' states classify count once.

    Returns:
        ``balanced_accuracy``, the mean recall of classes with images. ``low`` and ``high``, the ends of its interval.
        ``chance``, 100 / C for C classes to choose from. ``largest_class``, the accuracy of always predicting the
        largest class. ``predicted_class``, the class with the most predictions. ``predicted`` and ``images``, its
        shares of predictions and images. Roles average over splits, except for the shares, which count all images.
        ``macro_f1``, the mean F1 of classes with images or predictions, only if ``with_macro_f1``.

    >>> scores = class_balance({"test/a": {"intact": (70, 70, 99), "broken": (30, 1, 1)}})["test"]
    >>> [round(scores[name], 1) for name in ("balanced_accuracy", "low", "high", "chance", "largest_class")]
    [51.7, 48.0, 56.8, 50.0, 70.0]
    """
    groups: dict[str, list[ClassCounts]] = {}
    for name, by_class in counts.items():
        groups[name] = [by_class]
        groups.setdefault(name.partition("/")[0], []).append(by_class)
    return {name: _scores(splits, with_macro_f1) for name, splits in groups.items()}


def _scores(splits: Sequence[ClassCounts], with_macro_f1: bool) -> dict[str, Any]:
    f1 = []
    present = []
    for by_class in splits:
        counts = np.array(list(by_class.values()), float)  # [C, 3]
        present.append(counts[counts[:, 0] > 0])
        images, right, predicted = counts[counts.any(axis=1)].T  # classes with images or predictions
        f1.append(200 * float((right / (images + predicted)).mean()))
    images, right, _ = np.concatenate(present).T  # each [m], the classes with images of all splits
    classes = [len(kinds) for kinds in present]
    weights = np.repeat([1 / count / len(splits) for count in classes], classes)
    added = 2 / len(images)
    share = (right + added) / (images + 2 * added)
    centre = (weights * share).sum()
    variance = (weights**2 * share * (1 - share) / (images + 2 * added)).sum()
    radius = NormalDist().inv_cdf((1 + LEVEL) / 2) * variance**0.5
    totals: dict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros(3))
    for by_class in splits:
        for name, class_counts in by_class.items():
            totals[name] += class_counts
    name = max(totals, key=lambda name: totals[name][2])
    all_images, _, all_predicted = sum(totals.values(), np.zeros(3))
    return {
        "balanced_accuracy": 100 * float((weights * right / images).sum()),
        "low": 100 * max(0.0, float(centre - radius)),
        "high": 100 * min(1.0, float(centre + radius)),
        "chance": 100 * float(np.mean([1 / len(by_class) for by_class in splits])),
        "largest_class": 100 * float(np.mean([kinds[:, 0].max() / kinds[:, 0].sum() for kinds in present])),
        "predicted_class": name,
        "images": 100 * float(totals[name][0] / all_images),
        "predicted": 100 * float(totals[name][2] / all_predicted),
        **({"macro_f1": fmean(f1)} if with_macro_f1 else {}),
    }


def is_imbalanced(scores: Mapping[str, Any]) -> bool:
    """Whether the largest class has so many images that accuracy is misleading."""
    return bool(scores["largest_class"] - scores["chance"] >= IMBALANCE)


def describe_balance(balance: Balance, title: str) -> list[str]:
    """Describe in one line that a state predicts mostly one class or is no better than chance; else no line.

    The line describes the first such role. Source validation, which only selects a round, comes last.
    """
    for role in sorted((name for name in balance if name in ROLES), key=lambda name: ROLES[name].selects):
        scores = balance[role]
        parts: list[str] = []
        if scores["predicted"] > ONE_CLASS:
            shares = f"{scores['predicted']:.1f} % of the predictions and has {scores['images']:.1f} % of the images"
            parts.append(f"the class {scores['predicted_class']!r} receives {shares}")
        if scores["low"] <= scores["chance"]:
            interval = f"{scores['balanced_accuracy']:.1f} % (95 %: {scores['low']:.1f} to {scores['high']:.1f})"
            verdict = "below" if scores["high"] < scores["chance"] else "indistinguishable from"
            parts.append(f"balanced accuracy, {interval}, is {verdict} chance, {scores['chance']:.1f} %")
        if parts:
            return [f"{title}, {ROLES[role].images} images: {'; '.join(parts)}"]
    return []
