"""Scores of two classes, compared with loops over images, and the threshold that source validation chooses."""

from dataclasses import replace

import numpy as np
import pytest

from fedvlp.core.metrics import all_scores
from fedvlp.core.predictions import RESAMPLES, TWO_CLASSES, Predictions, interval, two_class_scores, youden_threshold
from tests.helpers.predictions import select_images

NAMES = ["defect", "intact"]


def draw_two(images, states=1, seed=0):
    """Draw predictions of which some are equally probable, also in different classes."""
    generator = np.random.default_rng(seed)
    labels = (generator.random(images) < 0.3).astype(np.int32)
    second = np.clip(generator.normal(0.35 + 0.2 * labels, 0.2, (states, images)), 0, 1).round(1).astype(np.float32)
    return Predictions(labels, (second > 0.5).astype(np.int32), np.maximum(second, 1 - second))


def slow_scores(predictions):
    """Compute the scores by their definitions, with loops over pairs of images and over thresholds."""
    found = []
    for row, confidences in zip(predictions.predicted.tolist(), predictions.confidence.astype(float), strict=True):
        pairs = list(zip(row, confidences, strict=True))
        values = [conf if label == predictions.positive else 1 - conf for label, conf in pairs]
        yes = [value for value, label in zip(values, predictions.labels, strict=True) if label == predictions.positive]
        no = [value for value, label in zip(values, predictions.labels, strict=True) if label != predictions.positive]
        auroc = sum((one > other) + (one == other) / 2 for one in yes for other in no) / len(yes) / len(no)
        precision = recall = average = 0.0
        for threshold in sorted(set(values), reverse=True):
            hits, alarms = (sum(value >= threshold for value in group) for group in (yes, no))
            precision = hits / (hits + alarms)
            average += (hits / len(yes) - recall) * precision
            recall = hits / len(yes)
        sensitivity = sum(value >= predictions.threshold for value in yes) / len(yes)
        specificity = sum(value < predictions.threshold for value in no) / len(no)
        found.append([auroc, average, sensitivity, specificity])
    return dict(zip(TWO_CLASSES.values(), 100 * np.mean(found, axis=0), strict=True))


@pytest.mark.parametrize(("images", "states", "positive"), [(40, 1, 1), (40, 2, 0)])
def test_scores_and_their_intervals_match_loops_over_images(images, states, positive):
    predictions = replace(draw_two(images, states), positive=positive, threshold=0.42)
    scores, samples = two_class_scores(predictions, "held_out/ink", NAMES)
    expected = slow_scores(predictions)
    assert scores == pytest.approx(expected | {"threshold": 42.0, "positive_class": NAMES[positive]})
    generator = np.random.default_rng(5)
    by_class = [np.flatnonzero(predictions.labels == label) for label in (0, 1)]
    slow = []
    for _ in range(150):
        drawn = np.concatenate([generator.choice(rows, len(rows)) for rows in by_class])
        chosen = replace(select_images(predictions, drawn), positive=positive, threshold=0.42)
        slow.append(list(slow_scores(chosen).values()))
    for name, values in zip(TWO_CLASSES.values(), np.transpose(slow), strict=True):
        assert len(samples[name]) == RESAMPLES
        assert samples[name].mean() == pytest.approx(values.mean(), abs=1.5)
        assert samples[name].std() == pytest.approx(values.std(), rel=0.3)


def test_scores_depend_on_neither_the_order_of_images_nor_the_scale_of_probabilities():
    predictions = draw_two(70, 2)
    scores, samples = two_class_scores(predictions, "a", NAMES)
    shuffled = select_images(predictions, np.random.default_rng(2).permutation(70))
    again, resampled = two_class_scores(shuffled, "a", NAMES)
    assert scores == again
    assert all(np.array_equal(samples[name], resampled[name]) for name in samples)
    sharper = replace(predictions, confidence=1 - (1 - predictions.confidence) ** 2 * 2)
    rescaled, _ = two_class_scores(sharper, "a", NAMES)
    assert [rescaled[name] for name in TWO_CLASSES.values()] == pytest.approx(list(scores.values())[:4])


def test_exchanging_the_classes_exchanges_sensitivity_and_specificity():
    predictions = replace(draw_two(80), threshold=0.33)
    one, _ = two_class_scores(predictions, "a", NAMES)
    other, _ = two_class_scores(replace(predictions, positive=0, threshold=0.67), "a", NAMES)
    assert other["positive_class"] == "defect"
    assert (other["class_auroc"], other["sensitivity"]) == pytest.approx((one["class_auroc"], one["specificity"]))
    assert other["specificity"] == pytest.approx(one["sensitivity"])


@pytest.mark.parametrize("positive", [0, 1])
def test_the_threshold_has_the_highest_youden_index(positive):
    splits = [replace(draw_two(40, 2, seed), positive=positive) for seed in (3, 4)]
    threshold = youden_threshold(splits)
    whole = Predictions(
        np.concatenate([np.tile(each.labels, 2) for each in splits]),
        np.concatenate([each.predicted.ravel() for each in splits])[None],
        np.concatenate([each.confidence.ravel() for each in splits])[None],
        positive=positive,
    )
    indices = {}
    for candidate in (threshold, *np.linspace(0.05, 0.95, 10)):  # probabilities are multiples of 0.1
        rates = slow_scores(replace(whole, threshold=candidate))
        indices[candidate] = rates["sensitivity"] + rates["specificity"]
    assert indices[threshold] == pytest.approx(max(indices.values()))


def test_the_threshold_is_a_midpoint_and_one_half_without_both_classes():
    confidence = np.float32([[0.875, 0.75, 0.625]])  # of the second class: 0.125, 0.25, 0.625
    validation = Predictions(np.int32([0, 1, 1]), np.int32([[0, 0, 1]]), confidence)
    assert youden_threshold([validation]) == 0.1875
    assert youden_threshold([replace(validation, labels=np.int32([1, 1, 1]))]) == 0.5
    assert (
        youden_threshold([replace(validation, predicted=np.int32([[1, 1, 1]]), confidence=0 * confidence + 1)]) == 0.5
    )


def test_roles_average_scores_only_if_all_domains_have_both_classes():
    splits = {"test/ink": draw_two(50), "test/oil": draw_two(40, seed=1)}
    found = all_scores(splits, NAMES)
    for name in TWO_CLASSES.values():
        assert found["test"][name] == pytest.approx((found["test/ink"][name] + found["test/oil"][name]) / 2)
        low, high = found["test"]["intervals"][name]
        assert low < found["test"][name] < high
    assert (found["test"]["positive_class"], found["test"]["threshold"]) == ("intact", 50.0)
    one_class = replace(splits["test/oil"], labels=np.zeros(40, np.int32))
    found = all_scores({**splits, "test/oil": one_class}, NAMES)
    assert "class_auroc" in found["test/ink"]
    assert found["test"].keys().isdisjoint([*TWO_CLASSES.values(), "threshold", "positive_class"])
    assert list(found["test"]["intervals"]) == ["accuracy", "balanced_accuracy", "macro_f1", "calibration_error"]
    assert "class_auroc" not in all_scores(splits, [*NAMES, "other"])["test"]


def test_images_with_equal_probabilities_are_at_chance():
    labels = np.int32([0, 1, 1, 1])
    nothing = Predictions(labels, np.zeros((1, 4), np.int32), np.zeros((1, 4), np.float32))  # logits are NaN
    scores, samples = two_class_scores(nothing, "a", NAMES)
    assert (scores["class_auroc"], scores["average_precision"]) == (50.0, 75.0)
    assert interval(samples["class_auroc"]) == [50.0, 50.0]
