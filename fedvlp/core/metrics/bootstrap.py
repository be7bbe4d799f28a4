"""How far a score depends on the images that were measured: the bootstrap over images (Efron, 1979)."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from fedvlp.core.predictions import Predictions

Samples = NDArray[np.float64]
"""One score for each resample, in percent."""

RESAMPLES = 1000
LEVEL = 0.95
AT_ONCE = 100
"""Of these resamples in memory together."""


def resample(predictions: Predictions, num_classes: int, name: str, seed: int = 0) -> dict[str, Samples]:
    """Returns scores of as many images, drawn with replacement, again and again.

    An image is drawn with the predictions of all states, so several seeds' predictions of the same images, stacked, are
    drawn together. The draws depend on how often each combination of true and predicted classes occurs, not on order.

    Args:
        predictions: of the images.
        num_classes: number of classes.
        name: of the images; those of other names are drawn independently.
        seed: of the draws.

    Returns:
        ``accuracy``, ``balanced_accuracy`` and ``macro_f1`` of all states' predictions together, for each resample.
    """
    images = np.concatenate([predictions.labels[None].numpy(), predictions.predicted.numpy()])
    # Images with the same label and predictions are interchangeable, so their kinds are drawn: one multinomial each.
    kinds, counts = np.unique(images, axis=1, return_counts=True)
    labels = kinds[0]
    predicted = kinds[1:]
    generator = np.random.default_rng([seed, zlib.crc32(name.encode("utf-8", "surrogateescape"))])
    true = _matrix(labels[None], np.full(len(labels), len(predicted)), num_classes)
    as_predicted = _matrix(predicted, np.ones(predicted.size), num_classes)
    right = _matrix(labels[None], (predicted == labels).sum(0), num_classes)
    total = int(counts.sum())
    parts = []
    for _ in range(0, RESAMPLES, AT_ONCE):
        draws = generator.multinomial(total, counts / total, size=AT_ONCE)
        parts.append(_scores(draws @ true, draws @ as_predicted, draws @ right))
    return {score: np.concatenate([part[score] for part in parts]) for score in parts[0]}


def _matrix(classes: NDArray[np.int32], values: NDArray[Any], num_classes: int) -> Any:
    """Returns [kinds, C] with the sum of a kind's values of each class.

    Args:
        classes: [.., kinds] of the values.
        values: one for each.
        num_classes: C.
    """
    kinds = np.broadcast_to(np.arange(classes.shape[1]), classes.shape)
    shape = (classes.shape[1], num_classes)
    return csr_matrix((values.astype(np.float64), (kinds.ravel(), classes.ravel())), shape)


def _scores(true: Samples, taken: Samples, right: Samples) -> dict[str, Samples]:
    """Returns each resample's scores from its counts [resamples, C] by true class, by predicted class, and of both."""
    has_images = true > 0
    recall = np.divide(right, true, where=has_images, out=np.zeros_like(true))
    is_used = true + taken > 0
    f1 = np.divide(2 * right, true + taken, where=is_used, out=np.zeros_like(true))
    return {
        "accuracy": 100 * right.sum(1) / true.sum(1),
        "balanced_accuracy": 100 * recall.sum(1) / has_images.sum(1),
        "macro_f1": 100 * f1.sum(1) / is_used.sum(1),
    }


def interval(samples: Samples) -> list[float]:
    """Returns the lower and the upper end of the percentile interval, as JSON holds them.

    >>> [round(end, 6) for end in interval(np.arange(1001.0))]
    [25.0, 975.0]
    """
    outside = (1 - LEVEL) / 2
    low, high = np.quantile(samples, [outside, 1 - outside])
    return [float(low), float(high)]
