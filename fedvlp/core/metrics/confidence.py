"""Whether the probability of a prediction can be believed, and whether it is lower for images of no class."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_calibration_error, binary_roc

from fedvlp.core.predictions import Predictions

GRID = 2**24
"""Confidences are rounded to multiples of 1 / GRID, float32's own step below 1, so that their sums are exact."""


def calibration_error(predictions: Predictions, bins: int = 15) -> float:
    """Returns the expected calibration error (Guo et al., ICML 2017, Eq. 3), in points; of several states the mean.

    Images are put into bins of equal width by their confidence; the error is the mean over images of the distance
    between their bin's mean confidence and its accuracy. A bin has its lower bound, and the last one 1 as well. Sums
    are exact, so they do not depend on the order of the images.

    Args:
        predictions: with the confidence of each image.
        bins: how many.
    """
    rights = predictions.predicted == predictions.labels
    confidence = predictions.confidence.double().mul(GRID).round().div(GRID)
    below_one = confidence.clamp(max=1 - torch.finfo(torch.float64).eps)  # else torchmetrics gives 1 a bin of its own
    errors = [
        binary_calibration_error(sure, right.int(), bins, "l1", validate_args=False)
        for sure, right in zip(below_one, rights, strict=True)
    ]
    return 100 * statistics.fmean(map(float, errors))


def detection(inside: Predictions, outside: Predictions) -> dict[str, float]:
    """Returns how well the maximum softmax probability tells images of the classes from others (Hendrycks & Gimpel).

    Of several states each is compared with itself, and the mean is taken.

    Args:
        inside: of images of the classes, on one split.
        outside: of images of other things.

    Returns:
        ``auroc``, the area under the receiver operating characteristic with images of the classes as positives, and
        ``fpr_at_95``, the share of other images above the highest threshold that keeps 95 % of the classes' images;
        both in percent.
    """
    by_state = [_detection(*pair) for pair in _of_each_state(inside, outside)]
    return {name: 100 * mean_of(by_state, name) for name in ("auroc", "fpr_at_95")}


def mean_of(scores: Sequence[Mapping[str, float]], name: str) -> float:
    """Returns the mean of one of several scores that each of some measurements has.

    >>> mean_of([{"auroc": 0.5}, {"auroc": 1.0}], "auroc")
    0.75
    """
    return statistics.fmean(each[name] for each in scores)


def _of_each_state(inside: Predictions, outside: Predictions) -> list[tuple[Float[Tensor, "N"], Float[Tensor, "M"]]]:
    """Returns the confidences of each state on both kinds of images; one state measures one of them for all."""
    pairs = []
    for row, sure in enumerate(inside.confidence):
        is_known = row < len(inside.clients) and inside.clients[row] in outside.clients
        other = outside.of_client(inside.clients[row]) if is_known else 0
        pairs.append((sure, outside.confidence[other]))
    return pairs


def _detection(inside: Float[Tensor, "N"], outside: Float[Tensor, "M"]) -> dict[str, float]:
    confidence = torch.cat([inside, outside])
    is_inside = torch.cat([torch.ones_like(inside), torch.zeros_like(outside)]).int()
    false_positives, true_positives, _ = binary_roc(confidence, is_inside, validate_args=False)
    return {
        "auroc": float(binary_auroc(confidence, is_inside, validate_args=False)),
        "fpr_at_95": float(false_positives[true_positives >= 0.95].min()),
    }
