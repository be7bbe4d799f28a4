"""The predicted classes of images, and what NumPy computes of them: accuracy, confusions, intervals over images."""

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

# How many images there are of each true and predicted class; pairs without an image are left out.
Confusion = Counter[tuple[int, int]]
# One score for each resample, in percent.
Samples = NDArray[np.float64]

RESAMPLES = 1000
LEVEL = 0.95
# Of these resamples in memory together.
AT_ONCE = 100


def percent(correct: int, count: int) -> float:
    """Compute the share of images that are right, in percent."""
    return 100 * float(np.float32(correct) / np.float32(count))  # in float32, as logits are


@dataclass(frozen=True)
class Predictions:
    """The predicted classes of a split's images, by one state of a method or by those of several clients.

    Attributes:
        labels: true class of each image, in the order of the split, int32; -1 of images that are of no class.
        predicted: class with the highest probability, for each of K states and each image, int32.
        confidence: that probability, the largest of the softmax, in (0, 1], float32; 0 where logits are no numbers.
        clients: names of the clients whose states these are. For a single state, the clients that train on the images'
            domain; empty if it is held out.
        class_names: the classes, in the order of the labels, if they are others than those that train.
    """

    labels: Int[np.ndarray, "N"]
    predicted: Int[np.ndarray, "K N"]
    confidence: Float[np.ndarray, "K N"]
    clients: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """The share of images that are classified rightly, in percent; the mean over states."""
        # Each state counts the same, however many images its client has.
        rights = (self.predicted == self.labels).sum(-1).tolist()
        return sum(percent(correct, len(self.labels)) for correct in rights) / len(rights)

    def of_client(self, client: str) -> int:
        """Return which of the K states is a client's."""
        return self.clients.index(client) if len(self.predicted) > 1 else 0


def stack(of_states: Sequence[Predictions], clients: Sequence[str], class_names: Sequence[str] = ()) -> Predictions:
    """Return the predictions of several states, at least one, for the same images."""
    predicted = np.concatenate([each.predicted for each in of_states])
    confidence = np.concatenate([each.confidence for each in of_states])
    return Predictions(of_states[0].labels, predicted, confidence, tuple(clients), tuple(class_names))


def confusion_of(predictions: Predictions) -> Confusion:
    """Count the images of each true and predicted class, over all states."""
    if not predictions.predicted.size:
        return Counter()
    predicted = predictions.predicted.astype(np.int64)
    width = int(predicted.max()) + 1
    # One number for each pair, since that is much faster to count than rows of two.
    pairs, counts = np.unique(predictions.labels.astype(np.int64) * width + predicted, return_counts=True)
    return Counter({divmod(pair, width): count for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)})


def resample(predictions: Predictions, num_classes: int, name: str, seed: int = 0) -> dict[str, Samples]:
    """Score as many images, drawn with replacement again and again: the bootstrap over images (Efron, 1979).

    An image is drawn with the predictions of all states, so several seeds' predictions of the same images, stacked, are
    drawn together. The draws depend on ``seed``, ``name`` and how often each combination of true and predicted classes
    occurs, not on the order of images.

    Returns:
        ``accuracy``, ``balanced_accuracy`` and ``macro_f1`` of all states' predictions together, for each resample.
    """
    images = np.concatenate([predictions.labels[None], predictions.predicted])
    # Images with the same label and predictions are interchangeable, so their kinds are drawn: one multinomial each.
    kinds, counts = np.unique(images, axis=1, return_counts=True)
    labels = kinds[0]
    predicted = kinds[1:]
    generator = np.random.default_rng([seed, zlib.crc32(name.encode("utf-8", "surrogateescape"))])
    by_label = _matrix(labels[None], np.full(len(labels), len(predicted)), num_classes)
    by_prediction = _matrix(predicted, np.ones(predicted.size), num_classes)
    right = _matrix(labels[None], (predicted == labels).sum(0), num_classes)
    total = int(counts.sum())
    parts = []
    for _ in range(0, RESAMPLES, AT_ONCE):
        draws = generator.multinomial(total, counts / total, size=AT_ONCE)
        parts.append(_resampled_scores(draws @ by_label, draws @ by_prediction, draws @ right))
    joined = {}
    for score in parts[0]:
        joined[score] = np.concatenate([part[score] for part in parts])
    return joined


def _matrix(classes: NDArray[np.int32], values: NDArray[Any], num_classes: int) -> Any:
    """[kinds, C] with the sum of a kind's values of each class, from classes [.., kinds] and one value for each."""
    from scipy.sparse import csr_matrix  # for intervals alone

    kinds = np.broadcast_to(np.arange(classes.shape[1]), classes.shape)
    shape = (classes.shape[1], num_classes)
    return csr_matrix((values.astype(np.float64), (kinds.ravel(), classes.ravel())), shape)


def _resampled_scores(by_label: Samples, by_prediction: Samples, right: Samples) -> dict[str, Samples]:
    """Each resample's scores from its counts [resamples, C] by true class, by predicted class, and of both."""
    has_images = by_label > 0
    recall = np.divide(right, by_label, where=has_images, out=np.zeros_like(by_label))
    is_used = by_label + by_prediction > 0
    f1 = np.divide(2 * right, by_label + by_prediction, where=is_used, out=np.zeros_like(by_label))
    return {
        "accuracy": 100 * right.sum(1) / by_label.sum(1),
        "balanced_accuracy": 100 * recall.sum(1) / has_images.sum(1),
        "macro_f1": 100 * f1.sum(1) / is_used.sum(1),
    }


def interval(samples: Samples) -> list[float]:
    """The lower and the upper end of the percentile interval, as JSON holds them.

    >>> [round(end, 6) for end in interval(np.arange(1001.0))]
    [25.0, 975.0]
    """
    outside = (1 - LEVEL) / 2
    low, high = np.quantile(samples, [outside, 1 - outside])
    return [float(low), float(high)]
