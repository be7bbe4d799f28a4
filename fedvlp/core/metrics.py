"""The predicted classes of images, and their scores: accuracy, of classes, of confidence, and intervals over images."""

from __future__ import annotations

import statistics
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_calibration_error,
    binary_roc,
    multiclass_f1_score,
    multiclass_recall,
)

from fedvlp.core.roles import OF_CLIENTS, OUT_OF_DISTRIBUTION


def percent(correct: int, count: int) -> float:
    """Returns the share of images that are right, in percent.

    >>> percent(1, 4)
    25.0
    """
    return 100 * torch.tensor(correct).div(count).item()  # in float32, as logits are


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

    labels: Int[Tensor, "N"]
    predicted: Int[Tensor, "K N"]
    confidence: Float[Tensor, "K N"]
    clients: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """The share of images that are classified rightly, in percent; the mean over states."""
        # Each state counts the same, however many images its client has.
        rights = (self.predicted == self.labels).sum(-1).tolist()
        return sum(percent(correct, len(self.labels)) for correct in rights) / len(rights)

    def of_client(self, client: str) -> int:
        """Returns which of the K states is a client's."""
        return self.clients.index(client) if len(self.predicted) > 1 else 0


def single_state(labels: Int[Tensor, "N"], predicted: Int[Tensor, "N"], confidence: Float[Tensor, "N"]) -> Predictions:
    """Returns the predictions of a single state, on the CPU."""
    finite = confidence.cpu().float().nan_to_num(0.0)
    return Predictions(labels.cpu().int(), predicted.cpu().int()[None], finite[None])


def stack(of_states: Sequence[Predictions], clients: Sequence[str], class_names: Sequence[str] = ()) -> Predictions:
    """Returns the predictions of several states, at least one, for the same images."""
    predicted = torch.cat([each.predicted for each in of_states])
    confidence = torch.cat([each.confidence for each in of_states])
    return Predictions(of_states[0].labels, predicted, confidence, tuple(clients), tuple(class_names))


# How many images there are of each true and predicted class; pairs without an image are left out.
Confusion = Counter[tuple[int, int]]
# One score for each resample, in percent.
Samples = NDArray[np.float64]
Scores = dict[str, Any]
# By split, ``<role>/<domain>``.
BySplit = Mapping[str, Predictions]

# Confidences are rounded to multiples of 1 / GRID, float32's own step below 1, so that their sums are exact.
GRID = 2**24
RESAMPLES = 1000
LEVEL = 0.95
# Of these resamples in memory together.
AT_ONCE = 100
# Scores of which a role has the mean over its domains.
AVERAGED = ("accuracy", "balanced_accuracy", "macro_f1", "calibration_error")


def confusion_of(predictions: Predictions) -> Confusion:
    """How many images there are of each true and predicted class, over all states.

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


def class_scores(predictions: Predictions, num_classes: int) -> Scores:
    """Scores that count each class the same, over all states, in percent.

    Returns:
        ``balanced_accuracy``, the mean recall of the classes that have images; ``macro_f1``, the mean F1 of those that
        have images or are predicted; ``class_accuracy``, the recall of each class that has images, by its label.

    >>> labels, predicted = torch.tensor([0, 0, 0, 0, 1, 1]).int(), torch.tensor([[0, 0, 0, 1, 1, 1]]).int()
    >>> scores = class_scores(Predictions(labels, predicted, torch.ones(1, 6)), 3)
    >>> scores["class_accuracy"], scores["balanced_accuracy"], round(scores["macro_f1"], 2)
    ({0: 75.0, 1: 100.0}, 87.5, 82.86)
    """
    labels = predictions.labels.expand_as(predictions.predicted).flatten()
    predicted = predictions.predicted.flatten()
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
    between their bin's mean confidence and its accuracy. A bin has its lower bound, and the last one 1 as well. Sums
    are exact, so they do not depend on the order of the images.
    """
    is_right = predictions.predicted == predictions.labels
    # Sums of multiples of a power of two are exact, so they do not depend on the order of images.
    confidence = predictions.confidence.double().mul(GRID).round().div(GRID)
    below_one = confidence.clamp(max=1 - torch.finfo(torch.float64).eps)  # else torchmetrics gives 1 a bin of its own
    errors: list[float] = []
    for of_state, right in zip(below_one, is_right, strict=True):
        errors.append(float(binary_calibration_error(of_state, right.int(), bins, "l1", validate_args=False)))
    return 100 * statistics.fmean(errors)


def detection(inside: Predictions, outside: Predictions) -> dict[str, float]:
    """How well the maximum softmax probability tells images of the classes from others (Hendrycks & Gimpel).

    Of several states each is compared with itself, and the mean is taken; one state measures either kind for all.

    Args:
        inside: of images of the classes, on one split.
        outside: of images of other things.

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
        confidence = torch.cat([of_inside, of_outside])
        is_inside = torch.cat([torch.ones_like(of_inside), torch.zeros_like(of_outside)]).int()
        false_positives, true_positives, _ = binary_roc(confidence, is_inside, validate_args=False)
        aurocs.append(float(binary_auroc(confidence, is_inside, validate_args=False)))
        false_positive_rates.append(float(false_positives[true_positives >= 0.95].min()))
    return {"auroc": 100 * statistics.fmean(aurocs), "fpr_at_95": 100 * statistics.fmean(false_positive_rates)}


def resample(predictions: Predictions, num_classes: int, name: str, seed: int = 0) -> dict[str, Samples]:
    """Scores of as many images, drawn with replacement again and again: the bootstrap over images (Efron, 1979).

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


def all_scores(predictions: BySplit, class_names: Sequence[str]) -> dict[str, Scores]:
    """The scores of each split, then those of each role, in percent or points, made to be written as JSON.

    Args:
        predictions: of all splits that are to be scored, and of images out of distribution, if there are any.
        class_names: the classes that train, in the order of the labels.
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
        if role not in OF_CLIENTS:  # else domains are clients
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
    """Means over domains, the intervals of these means, and what is worst."""
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
