"""Accuracy and F1 of each class, and their means, from counts of what images were taken for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torchmetrics.functional.classification import multiclass_f1_score, multiclass_recall

from fedvlp.core.confusion import Confusion


@dataclass(frozen=True)
class ClassScores:
    """How well each class is told from the others.

    Attributes:
        accuracy: share of a class's images that are taken for it, in percent.
        f1: harmonic mean of that share and of the share of the class's own among the images taken for it, in percent.
        has_images: which classes have images.
        is_predicted: for which classes images are taken.
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
        """The mean F1 of the classes that have images or for which some are taken, in percent."""
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
