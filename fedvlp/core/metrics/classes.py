"""Accuracy and F1 of each class, and their means, from counts of true and predicted classes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torchmetrics.functional.classification import multiclass_f1_score, multiclass_recall

from fedvlp.core.predictions import Predictions

Confusion = Counter[tuple[int, int]]
"""How many images there are of each true and predicted class; pairs without an image are left out."""


def confusion_of(predictions: Predictions) -> Confusion:
    """Returns how many images there are of each true and predicted class, over all states.

    >>> labels, predicted = torch.tensor([0, 1, 1]).int(), torch.tensor([[0, 0, 0]]).int()
    >>> dict(confusion_of(Predictions(labels, predicted, torch.ones(1, 3))))
    {(0, 0): 1, (1, 0): 2}
    """
    if not predictions.predicted.numel():
        return Counter()
    predicted = predictions.predicted.long()
    width = int(predicted.max()) + 1
    # One number for each pair, since that is much faster to count than rows of two.
    pairs, counts = torch.unique(predictions.labels.long() * width + predicted, return_counts=True)
    return Counter({divmod(pair, width): count for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)})


@dataclass(frozen=True)
class ClassScores:
    """Recall and F1 of each class.

    Attributes:
        accuracy: share of a class's images that are predicted as it (recall), in percent.
        f1: harmonic mean of recall and precision, in percent.
        has_images: which classes have images.
        is_predicted: which classes are predicted for any image.
    """

    accuracy: Float[Tensor, "C"]
    f1: Float[Tensor, "C"]
    has_images: Bool[Tensor, "C"]
    is_predicted: Bool[Tensor, "C"]

    @property
    def balanced_accuracy(self) -> float:
        """The mean accuracy of the classes that have images, in percent."""
        return float(self.accuracy[self.has_images].mean())

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that have images or are predicted, in percent."""
        return float(self.f1[self.has_images | self.is_predicted].mean())


def class_scores(confusion: Confusion, num_classes: int) -> ClassScores:
    """Returns the scores of each class.

    >>> scores = class_scores(Confusion({(0, 0): 3, (0, 1): 1, (1, 1): 2}), 3)
    >>> scores.accuracy.tolist(), scores.balanced_accuracy, round(scores.macro_f1, 2)
    ([75.0, 100.0, 0.0], 87.5, 82.86)
    """
    pairs = torch.tensor(sorted(confusion))
    counts = torch.tensor([confusion[true, predicted] for true, predicted in pairs.tolist()])
    labels, predicted = pairs.repeat_interleave(counts, 0).T
    return ClassScores(
        accuracy=100 * multiclass_recall(predicted, labels, num_classes, average="none", validate_args=False).double(),
        f1=100 * multiclass_f1_score(predicted, labels, num_classes, average="none", validate_args=False).double(),
        has_images=labels.bincount(minlength=num_classes) > 0,
        is_predicted=predicted.bincount(minlength=num_classes) > 0,
    )
