"""Balanced accuracy and macro F1 against loops over classes, and what must not change them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from fedvlp.core.metrics import class_scores, confusion_of
from tests.helpers.predictions import chosen, draw, renamed


def by_hand(predictions, classes):
    """Accuracy and F1 of each class that has any, one class after another."""
    pairs = []
    for row in predictions.predicted.tolist():
        pairs += zip(predictions.labels.tolist(), row, strict=True)
    accuracies = {}
    f1 = {}
    for label in range(classes):
        right = sum(true == taken == label for true, taken in pairs)
        images = sum(true == label for true, _ in pairs)
        taken = sum(taken == label for _, taken in pairs)
        if images:
            accuracies[label] = 100 * right / images
        if images or taken:
            precision = right / taken if taken else 0.0
            recall = right / images if images else 0.0
            both = precision + recall
            f1[label] = 100 * 2 * precision * recall / both if both else 0.0
    return accuracies, f1


@pytest.mark.parametrize(("images", "states", "classes"), [(1, 1, 2), (40, 1, 5), (150, 3, 7), (30, 2, 30)])
def test_scores_are_those_of_a_loop_over_classes(images, states, classes):
    predictions = draw(images, states, classes - 1)  # the last class has no images
    predictions.predicted[0, 0] = classes - 1
    scores = class_scores(confusion_of(predictions), classes)
    accuracies, f1 = by_hand(predictions, classes)
    assert scores.balanced_accuracy == pytest.approx(sum(accuracies.values()) / len(accuracies))
    assert scores.macro_f1 == pytest.approx(sum(f1.values()) / len(f1))
    for label, value in accuracies.items():
        assert scores.accuracy[label].item() == pytest.approx(value)
    assert scores.has_images.nonzero().flatten().tolist() == sorted(accuracies)


def test_names_of_classes_order_of_images_and_how_often_they_stand_there_change_nothing():
    predictions = draw(60, 2, 4)
    scores = class_scores(confusion_of(predictions), 4)
    others = {
        "renamed": renamed(predictions, [2, 0, 3, 1]),
        "shuffled": chosen(predictions, torch.randperm(60, generator=torch.Generator().manual_seed(1))),
        "thrice": chosen(predictions, torch.arange(60).repeat(3)),
    }
    for other in others.values():
        again = class_scores(confusion_of(other), 4)
        assert again.balanced_accuracy == pytest.approx(scores.balanced_accuracy)
        assert again.macro_f1 == pytest.approx(scores.macro_f1)
    assert class_scores(confusion_of(others["shuffled"]), 4).macro_f1 == scores.macro_f1
    again = class_scores(confusion_of(others["renamed"]), 4)
    assert again.accuracy[[2, 0, 3, 1]].tolist() == scores.accuracy.tolist()


def test_batches_add_up_to_the_whole():
    predictions = draw(50, 2, 4)
    parts = [confusion_of(chosen(predictions, part)) for part in torch.arange(50).split(7)]
    assert sum(parts, Counter()) == confusion_of(predictions)
