"""Scores that count classes instead of images, compared with slow loops."""

import math

import numpy as np
import pytest

from fedvlp.core.balance import class_balance, count_classes, describe_balance, is_imbalanced
from fedvlp.core.metrics import class_scores
from fedvlp.core.predictions import Predictions
from tests.helpers.predictions import draw

NAMES = ["a", "b", "c", "d", "e", "absent"]


def slow_interval(splits):
    """Compute the Price-Bonett interval of the mean recall, averaged over splits, class by class."""
    cells = []
    for split in splits:
        present = [(right, images) for images, right, _ in split.values() if images]
        cells += [(right, images, 1 / len(present) / len(splits)) for right, images in present]
    centre = 0.0
    variance = 0.0
    for right, images, weight in cells:
        share = (right + 2 / len(cells)) / (images + 4 / len(cells))
        centre += weight * share
        variance += weight * weight * share * (1 - share) / (images + 4 / len(cells))
    return centre - 1.959964 * math.sqrt(variance), centre + 1.959964 * math.sqrt(variance)


def test_scores_match_loops_over_images():
    splits = {"test/x": draw(70, states=3), "test/y": draw(40, seed=1), "held_out/z": draw(30, seed=2, right=0.1)}
    counts = {name: count_classes(each, NAMES) for name, each in splits.items()}
    balance = class_balance(counts)
    with_f1 = class_balance(counts, with_macro_f1=True)
    assert balance.keys() == {*splits, "test", "held_out"}
    for name, scores in balance.items():
        members = [
            split for split in splits if split in (name, *(each for each in splits if each.startswith(f"{name}/")))
        ]
        recalls = []
        largest = []
        for split in members:
            labels, predicted = splits[split].labels, splits[split].predicted
            class_recalls = [np.mean(predicted[:, labels == label] == label) for label in set(labels.tolist())]
            recalls.append(np.mean(class_recalls))
            largest.append(max(np.mean(labels == label) for label in range(5)))
        low, high = slow_interval([counts[split] for split in members])
        expected = [np.mean(recalls), low, high, 1 / 6, np.mean(largest)]
        found = [scores[key] for key in ("balanced_accuracy", "low", "high", "chance", "largest_class")]
        assert found == pytest.approx([100 * value for value in expected], abs=1e-4)
        macro_f1 = np.mean([class_scores(splits[split], 6)["macro_f1"] for split in members])
        assert with_f1[name] == {**scores, "macro_f1": pytest.approx(macro_f1, abs=1e-4)}
        right = [Predictions.accuracy.fget(splits[split]) for split in members]
        assert 0 <= scores["predicted"] <= 100 >= max(right)


def score(predicted, labels=(0,) * 70 + (1,) * 30, names=("intact", "broken")):
    """Score these predictions for, by default, 70 images of one class and 30 of the other."""
    predictions = Predictions(np.int32(labels), np.int32([predicted]), np.ones((1, len(labels)), np.float32))
    return class_balance({"held_out/x": count_classes(predictions, names)})


def test_predicting_only_one_class_is_reported():
    (line,) = describe_balance(score([0] * 100), "last round")
    assert line.startswith("last round, held-out images: the class 'intact' receives 100.0 % of the predictions and ")
    assert "has 70.0 % of the images; balanced accuracy, 50.0 % (95 %: 4" in line
    assert line.endswith("is indistinguishable from chance, 50.0 %")
    assert is_imbalanced(score([0] * 100)["held_out"])
    assert describe_balance(score([0] * 60 + [1] * 40), "last round") == []
    (wrong,) = describe_balance(score([1] * 70 + [0] * 30), "last round")
    assert "is below chance, 50.0 %" in wrong


def test_predictions_independent_of_the_image_are_reported_as_chance():
    """71 of 100 predictions are right, more than the 70 images of the largest class."""
    (line,) = describe_balance(score([0] * 67 + [1] * 3 + [0] * 26 + [1] * 4), "x")
    assert "predictions" not in line
    assert "indistinguishable from chance" in line
