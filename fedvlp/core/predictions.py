"""Predictions of images and their scores and intervals, for classes, two classes or several labels; no PyTorch."""

import itertools
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

# Number of images of each true and predicted class, without pairs that have no image.
Confusion = Counter[tuple[int, int]]
# One score per resample, in percent.
Samples = NDArray[np.float64]

RESAMPLES = 1000
LEVEL = 0.95
# Number of resamples in memory at once.
AT_ONCE = 100

RATES = ("sensitivity", "specificity")
TWO_CLASSES = {"AUROC": "class_auroc", "AP": "average_precision"} | {name: name for name in RATES}
"""Titles of columns in tables of two classes, and their scores."""
LABEL_SCORES = {"accuracy": "mAP", "class_auroc": "macro AUROC", "macro_f1": "macro F1", "micro_f1": "micro F1"}
"""Scores of images with several labels, and their titles; mean average precision takes the place of accuracy."""
LABEL_SCORES_LEGEND = "mAP: mean average precision; F1: at each label's best threshold on source validation, or 50 %"
LABEL_COLUMNS = {title: score for score, title in LABEL_SCORES.items() if score != "accuracy"}
"""Titles of additional columns in tables of images with several labels, and their scores."""
TWO_CLASSES_LEGEND = "AP: average precision; threshold: by Youden's index on source validation, or 50 % without it"


def name_accuracy(text: str, has_several_labels: bool) -> str:
    """Replace the word "accuracy" by the score that takes its place if images have several labels.

    >>> name_accuracy("Accuracy in %", True), name_accuracy("Accuracy in %", False)
    ('mAP in %', 'Accuracy in %')
    """
    score = LABEL_SCORES["accuracy"]
    return text.replace("accuracy", score).replace("Accuracy", score) if has_several_labels else text


def percent(correct: int, count: int) -> float:
    """Compute the share of correct images, in percent."""
    return 100 * float(np.float32(correct) / np.float32(count))  # in float32, like logits


@dataclass(frozen=True)
class Predictions:
    """The predicted classes of a split's images, by one state of a method or by the states of several clients.

    If images have several labels, the arrays have another axis, for L labels.

    Attributes:
        labels: True class of each image, in the order of the split, int32; -1 for images that belong to no class. Or
            whether each label applies: 1, 0, or -1 if it is unknown, int8.
        predicted: Class with the highest probability, for each of K states and each image, int32. Or whether each
            label's probability reaches its threshold, int8.
        confidence: The highest probability of the softmax, in (0, 1], float32; 0 if logits are NaN. Or each label's
            probability.
        clients: Names of the clients of the K states. For a single state, the clients of the images' domain; empty if
            the domain is held out.
        class_names: The classes, in the order of the labels, if they are not the training classes.
        positive: Label of the positive class, if there are two classes.
        threshold: Probability from which an image counts as positive.
        thresholds: The same for each of several labels; empty for 50 %.
        scores: Other scores than ``confidence`` by which images of the classes may be higher than images out of
            distribution, by name (see ``predict_split``), float32; empty without images out of distribution.
        groups: Number of each image's group, such as its patient, int32; an image without one has its own number. None
            if no image has a group.
    """

    labels: Int[np.ndarray, "N ..."]
    predicted: Int[np.ndarray, "K N ..."]
    confidence: Float[np.ndarray, "K N ..."]
    clients: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    positive: int = 1
    threshold: float = 0.5
    thresholds: tuple[float, ...] = ()
    groups: Int[np.ndarray, "N"] | None = None
    scores: Mapping[str, Float[np.ndarray, "K N"]] = field(default_factory=dict)

    @property
    def has_several_labels(self) -> bool:
        """Whether each image has several labels."""
        return self.labels.ndim == 2

    @property
    def accuracy_by_state(self) -> list[float]:
        """The share of correctly classified images in percent, or mean average precision, for each state."""
        if not self.has_several_labels:
            return [percent(count, len(self.labels)) for count in (self.predicted == self.labels).sum(-1).tolist()]
        draws = np.ones((1, len(self.labels)))
        states = zip(self.confidence[:, None], self.predicted[:, None], strict=True)
        return [float(_over_labels(_scores_by_label(self.labels, *state, draws))[0, 0]) for state in states]

    @property
    def accuracy(self) -> float:
        """The accuracy or mean average precision in percent, averaged over states with equal weights."""
        by_state = self.accuracy_by_state
        return sum(by_state) / len(by_state)

    @property
    def probabilities(self) -> tuple[Samples, Samples]:
        """The positive class's probability for images of the other class [K, N - P], and for its own images [K, P]."""
        confidence = np.maximum(self.confidence.astype(np.float64), 0.5)  # below 0.5 only if logits are NaN
        probability = np.where(self.predicted == self.positive, confidence, 1 - confidence)
        return probability[:, self.labels != self.positive], probability[:, self.labels == self.positive]

    def state_index(self, client: str) -> int:
        """Find the index of a client's state."""
        return self.clients.index(client) if len(self.predicted) > 1 else 0


def stack(by_state: Sequence[Predictions], clients: Sequence[str], class_names: Sequence[str] = ()) -> Predictions:
    """Combine the predictions of at least one state for the same images."""
    predicted = np.concatenate([predictions.predicted for predictions in by_state])
    confidence = np.concatenate([predictions.confidence for predictions in by_state])
    scores = {name: np.concatenate([each.scores[name] for each in by_state]) for name in by_state[0].scores}
    names = tuple(clients), tuple(class_names)
    return Predictions(by_state[0].labels, predicted, confidence, *names, groups=by_state[0].groups, scores=scores)


def count_confusions(predictions: Predictions) -> Confusion:
    """Count the images of each true and predicted class, over all states."""
    if not predictions.predicted.size:
        return Counter()
    predicted = predictions.predicted.astype(np.int64)
    width = int(predicted.max()) + 1
    # One integer per pair, because counting rows of two is much slower.
    pairs, counts = np.unique(predictions.labels.astype(np.int64) * width + predicted, return_counts=True)
    return Counter({divmod(pair, width): count for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)})


def resample(predictions: Predictions, num_classes: int, name: str, seed: int = 0) -> dict[str, Samples]:
    """Compute scores of bootstrap resamples of the images (Efron, 1979), or ``LABEL_SCORES`` for several labels.

    Images or their groups are drawn with replacement, each with the predictions of all states, so stacked predictions
    of several seeds are resampled jointly. The draws depend on ``seed``, ``name`` and the frequency of each combination
    of true and predicted classes, but not on the order of images.

    Returns:
        ``accuracy``, ``balanced_accuracy`` and ``macro_f1`` over all states together, for each resample.
    """
    if predictions.has_several_labels:
        return several_label_scores(predictions, name)[1]
    images = np.concatenate([predictions.labels[None], predictions.predicted])
    generator = np.random.default_rng([seed, zlib.crc32(name.encode("utf-8", "surrogateescape"))])
    draws: Iterator[NDArray[np.int64]]
    if predictions.groups is None:
        # Images with the same label and predictions are interchangeable, so one draw per resample is enough.
        kinds, counts = np.unique(images, axis=1, return_counts=True)
        total = int(counts.sum())
        draws = (generator.multinomial(total, counts / total, AT_ONCE) for _ in itertools.count())
    else:
        order, draws = _draw_images(images, predictions.groups, generator)
        kinds = images[:, order]
    labels = kinds[0]
    predicted = kinds[1:]
    by_label = _matrix(labels[None], np.full(len(labels), len(predicted)), num_classes)
    by_prediction = _matrix(predicted, np.ones(predicted.size), num_classes)
    right = _matrix(labels[None], (predicted == labels).sum(0), num_classes)
    parts = []
    for drawn in itertools.islice(draws, RESAMPLES // AT_ONCE):
        parts.append(_resampled_scores(drawn @ by_label, drawn @ by_prediction, drawn @ right))
    return dict(zip(("accuracy", "balanced_accuracy", "macro_f1"), np.concatenate(parts, axis=1), strict=True))


def _draw_images(
    images: NDArray[Any], groups: Int[np.ndarray, "N"] | None, generator: np.random.Generator
) -> tuple[NDArray[np.int64], Iterator[NDArray[np.int64]]]:
    """Draw images with replacement, or whole groups: the cluster bootstrap (Field & Welsh, JRSS B 69, 2007).

    Returns:
        An order of ``images`` [values, N] that depends only on their values and shared groups; and endless draws
        [AT_ONCE, N]: how often each image, in this order, is in a resample.
    """
    order = np.lexsort(images)
    sizes = np.ones_like(order)
    if groups is not None:
        kinds = np.unique(images, axis=1, return_inverse=True)[1].ravel().tolist()
        members: dict[int, list[int]] = defaultdict(list)
        for image in order.tolist():
            members[groups[image]].append(image)
        clusters = sorted(members.values(), key=lambda rows: [kinds[image] for image in rows])
        order = np.concatenate(clusters)
        sizes = np.array([len(rows) for rows in clusters])
    shares = np.full(len(sizes), 1 / len(sizes))
    draws = (generator.multinomial(len(sizes), shares, AT_ONCE) for _ in itertools.count())
    return order, (counts.repeat(sizes, axis=1) for counts in draws)


def _matrix(classes: NDArray[np.int32], values: NDArray[Any], num_classes: int) -> Any:
    """Sum values by kind and class to [kinds, C], from ``classes`` and ``values`` [..., kinds]."""
    from scipy.sparse import csr_matrix  # only needed for intervals

    kinds = np.broadcast_to(np.arange(classes.shape[1]), classes.shape)
    shape = (classes.shape[1], num_classes)
    return csr_matrix((values.astype(np.float64), (kinds.ravel(), classes.ravel())), shape)


def _resampled_scores(by_label: Samples, by_prediction: Samples, right: Samples) -> Samples:
    has_images = by_label > 0
    recall = np.divide(right, by_label, where=has_images, out=np.zeros_like(by_label))
    is_used = by_label + by_prediction > 0
    f1 = np.divide(2 * right, by_label + by_prediction, where=is_used, out=np.zeros_like(by_label))
    pairs = [(right, by_label), (recall, has_images), (f1, is_used)]
    return np.stack([100 * values.sum(1) / counts.sum(1) for values, counts in pairs])


def calibration_errors(
    predictions: Predictions, name: str = "", bins: int = 15, resamples: int = RESAMPLES
) -> Float[np.ndarray, "R"]:
    """Compute the expected calibration error in points (Guo et al., ICML 2017, Eq. 3), and its bootstrap resamples.

    Images are put into bins of equal width by their confidence; a bin includes its lower bound, and the last one 1. The
    error is the mean over images of the difference between mean confidence and accuracy of their bin, averaged over
    states. Images or their groups are drawn with replacement, each with the predictions of all states. The draws depend
    on ``name``, but not on the order of images. Drawing images twice raises the error, so resamples are shifted until
    their mean is the error, or to 0.
    """
    # Sums of multiples of float32's step below 1 are exact, so they do not depend on the order of images.
    confidence = np.round(predictions.confidence.astype(np.float64) * 2**24) / 2**24
    states = np.arange(len(confidence))[:, None]
    columns = (np.minimum(confidence * bins // 1, bins - 1) + bins * states).astype(np.int32)  # [K, N]
    images = np.concatenate([columns, (predictions.predicted == predictions.labels) - confidence])
    generator = np.random.default_rng(zlib.crc32(name.encode("utf-8", "surrogateescape")))
    order, draws = _draw_images(images, predictions.groups, generator)
    gaps = _matrix(columns[:, order], images[len(states) :, order].ravel(), bins * len(states))
    parts = []
    for counts in itertools.chain([np.ones((1, len(order)))], itertools.islice(draws, resamples // AT_ONCE)):
        parts.append(100 * np.abs(counts @ gaps).sum(1) / counts.sum(1) / len(states))
    errors = np.concatenate(parts)
    if resamples:
        errors[1:] = np.maximum(errors[1:] + errors[0] - errors[1:].mean(), 0)
    return errors


def youden_threshold(validation: Sequence[Predictions]) -> float:
    """Choose the probability with the highest sensitivity + specificity - 1, over all images and states.

    This is Youden's index (Cancer 3, 1950). Candidates are midpoints of neighbouring probabilities, as in pROC (Robin
    et al., BMC Bioinformatics 12, 2011). The lowest of equally good ones is chosen. If all are at chance, 0.5.
    """
    by_class = ([split.probabilities[label].ravel() for split in validation] for label in (0, 1))
    negatives, positives = (np.sort(np.concatenate([np.empty(0), *values])) for values in by_class)
    values = np.unique(np.concatenate([negatives, positives]))
    midpoints = (values[1:] + values[:-1]) / 2
    # In integers, so that ties are exact. All are 0 without images of both classes.
    index = negatives.searchsorted(midpoints) * len(positives) - positives.searchsorted(midpoints) * len(negatives)
    return float(midpoints[index.argmax()]) if index.any() else 0.5


def two_class_scores(split: Predictions, name: str, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, Samples]]:
    """Compute the scores ``TWO_CLASSES``, averaged over states, and their bootstrap resamples, in percent.

    Average precision is the mean over positive images of the precision at their probability. Images are drawn within
    their class, as in pROC, each with the predictions of all states. Groups are drawn from all images, and a resample
    without one of the classes is drawn again. The draws depend on ``name``, but not on the order of images. Both
    results are empty unless ``names`` are two classes that have images.
    """
    sizes = [images.shape[1] for images in split.probabilities] if len(names) == 2 else [0]
    if 0 in sizes:
        return {}, {}
    generator = np.random.default_rng(zlib.crc32(name.encode("utf-8", "surrogateescape")))
    draws: Iterator[Sequence[NDArray[np.int64]]]
    if split.groups is None:
        orders, drawn = zip(*(_draw_images(images, None, generator) for images in split.probabilities), strict=True)
        by_class = [images[:, order] for images, order in zip(split.probabilities, orders, strict=True)]
        draws = zip(*drawn, strict=True)
    else:
        images = np.concatenate([split.labels[None], split.predicted, split.confidence])
        order, of_images = _draw_images(images, split.groups, generator)
        arrays = split.labels[order], split.predicted[:, order], split.confidence[:, order]
        by_class = [*Predictions(*arrays, positive=split.positive).probabilities]
        masks = arrays[0] != split.positive, arrays[0] == split.positive
        draws = ([counts[:, mask] for mask in masks] for counts in of_images)
    parts = [_two_class_scores(by_class, [np.ones((1, size)) for size in sizes], split.threshold)]
    while sum(part.shape[1] for part in parts) <= RESAMPLES:
        counts = next(draws)
        has_both = np.all([of_class.any(1) for of_class in counts], axis=0)
        parts.append(_two_class_scores(by_class, [of_class[has_both] for of_class in counts], split.threshold))
    samples = dict(zip(TWO_CLASSES.values(), np.concatenate(parts, axis=1)[:, : 1 + RESAMPLES], strict=True))
    scores: dict[str, Any] = {score: float(values[0]) for score, values in samples.items()}
    scores |= {"threshold": 100 * split.threshold, "positive_class": names[split.positive]}
    return scores, {score: values[1:] for score, values in samples.items()}


def _two_class_scores(by_class: Sequence[Samples], draws: Sequence[NDArray[Any]], threshold: float) -> Samples:
    """Compute the scores [4, R] of R resamples, from probabilities [K, images] and draws [R, images] of each class."""
    by_state = []
    num_others, num_found = (counts.sum(1) for counts in draws)
    for state in zip(*by_class, strict=True):
        negatives, positives = map(np.sort, state)
        others, found = (counts[:, values.argsort()] for counts, values in zip(draws, state, strict=True))
        below, missed = (np.pad(counts.cumsum(1), ((0, 0), (1, 0))) for counts in (others, found))
        low, high = (below[:, negatives.searchsorted(positives, side)] for side in ("left", "right"))
        hits = num_found[:, None] - missed[:, positives.searchsorted(positives)]
        precision = hits / np.maximum(hits + num_others[:, None] - low, 1)
        wins = (low + high) / 2 / num_others[:, None]  # ties count half
        per_positive = [(found * wins).sum(1), (found * precision).sum(1), found @ (positives >= threshold)]
        by_state.append([*np.divide(per_positive, num_found), others @ (negatives < threshold) / num_others])
    return np.asarray(100 * np.mean(by_state, axis=0))


def f1_thresholds(validation: Sequence[Predictions]) -> tuple[float, ...]:
    """Choose each label's threshold with the highest F1, over all images and states.

    Candidates are the probabilities of its images. The highest of equally good ones is chosen; 0.5 without positives.
    """
    labels = np.concatenate([each.labels for each in validation for _ in each.confidence])  # [images, L]
    confidence = np.concatenate([state for each in validation for state in each.confidence])
    thresholds = []
    for truth, values in zip(labels.T, confidence.T, strict=True):
        candidates, position = np.unique(values[truth >= 0], return_inverse=True)
        # At each candidate, the positive and all images with at least its probability.
        found, count = (
            np.bincount(position, weights, len(candidates))[::-1].cumsum()[::-1]
            for weights in (truth[truth >= 0], None)
        )
        f1 = 2 * found / (count + found[:1])
        thresholds.append(float(candidates[len(f1) - 1 - f1[::-1].argmax()]) if f1.any() else 0.5)
    return tuple(thresholds)


def with_thresholds(split: Predictions, thresholds: tuple[float, ...]) -> Predictions:
    """Predict labels that reach their thresholds; without thresholds return ``split``."""
    if not thresholds:
        return split
    is_predicted = split.confidence >= np.asarray(thresholds, np.float32)
    return replace(split, predicted=is_predicted.astype(np.int8), thresholds=thresholds)


def several_label_scores(split: Predictions, name: str) -> tuple[dict[str, float], dict[str, Samples], list[float]]:
    """Compute ``LABEL_SCORES`` and their bootstrap resamples, and each label's average precision, in percent.

    Images or their groups are drawn with replacement, each with all labels and the predictions of all states. Average
    precision and AUROC are averaged over states, then over labels that occur in a resample; counts of F1 are summed
    over states. The draws depend on ``name``, but not on the order of images. A label that never occurs has the average
    precision NaN. Average precision rises when positives are drawn twice, so resamples are shifted until their mean
    is the score.
    """
    images = np.concatenate([split.labels.T, *split.confidence.transpose(0, 2, 1)])
    generator = np.random.default_rng(zlib.crc32(name.encode("utf-8", "surrogateescape")))
    order, draws = _draw_images(images, split.groups, generator)
    arrays = split.labels[order], split.confidence[:, order], split.predicted[:, order]
    by_label = _scores_by_label(*arrays, np.ones((1, len(order))))
    parts = [_over_labels(by_label)]
    for counts in itertools.islice(draws, RESAMPLES // AT_ONCE):
        parts.append(_over_labels(_scores_by_label(*arrays, counts)))
    samples = dict(zip(LABEL_SCORES, np.concatenate(parts, axis=1), strict=True))
    scores = {score: float(values[0]) for score, values in samples.items()}
    centred = {score: values[1:] + (values[0] - values[1:].mean()) for score, values in samples.items()}
    return scores, centred, by_label[1, :, 0].tolist()


def _scores_by_label(
    labels: Int[np.ndarray, "N L"],
    confidence: Float[np.ndarray, "K N L"],
    predicted: Int[np.ndarray, "K N L"],
    draws: NDArray[Any],
) -> Float[np.ndarray, "4 L R"]:
    """Compute each label's scores for R resamples from draws [R, N].

    They are AUROC and average precision in percent, NaN if they are undefined, and numerator and denominator of F1.
    """
    values = np.full((4, labels.shape[1], len(draws)), np.nan)
    for label, truth in enumerate(labels.T):
        masks = truth == 0, truth == 1
        drawn = [draws[:, mask] for mask in masks]
        if masks[1].any():
            by_class = [confidence[:, mask, label].astype(np.float64) for mask in masks]
            with np.errstate(invalid="ignore", divide="ignore"):  # a resample may lack a class
                values[:2, label] = _two_class_scores(by_class, drawn, 0.5)[:2]
        others, found = (counts @ predicted[:, mask, label].T for counts, mask in zip(drawn, masks, strict=True))
        values[2, label] = 2 * found.sum(1)
        values[3, label] = (found + others).sum(1) + len(predicted) * drawn[1].sum(1)
    return values


def _over_labels(by_label: Float[np.ndarray, "4 L R"]) -> Samples:
    """Compute ``LABEL_SCORES`` [4, R] from the labels' scores."""
    auroc, precision, right, total = by_label
    f1 = np.divide(100 * right, total, where=total > 0, out=np.full_like(total, np.nan))
    means = []
    for values in (precision, auroc, f1):
        is_defined = ~np.isnan(values)
        means.append(np.nan_to_num(values).sum(0) / np.maximum(is_defined.sum(0), 1))
    return np.stack([*means, 100 * right.sum(0) / np.maximum(total.sum(0), 1)])


def interval(samples: Samples) -> list[float]:
    """Compute the lower and upper end of the percentile interval, as JSON values.

    >>> [round(end, 6) for end in interval(np.arange(1001.0))]
    [25.0, 975.0]
    """
    outside = (1 - LEVEL) / 2
    low, high = np.quantile(samples, [outside, 1 - outside])
    return [float(low), float(high)]
