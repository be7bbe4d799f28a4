"""Resampled scores against a loop that draws images one by one, and what their width depends on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedvlp.core import metrics
from fedvlp.core.metrics import class_scores, confusion_of, interval, resample
from tests.helpers.predictions import chosen, draw

SCORES = ("accuracy", "balanced_accuracy", "macro_f1")


def scored(predictions, classes):
    """Accuracy, balanced accuracy and macro F1 of all states together, as they are reported."""
    scores = class_scores(confusion_of(predictions), classes)
    return [predictions.accuracy, scores.balanced_accuracy, scores.macro_f1]


@pytest.mark.parametrize(("images", "states"), [(50, 1), (35, 3)])
def test_quantiles_are_those_of_drawing_images_one_by_one(images, states):
    predictions = draw(images, states, 3)
    found = resample(predictions, 3, "held_out/ink")
    generator = np.random.default_rng(5)
    slow = []
    for _ in range(400):
        drawn = chosen(predictions, generator.integers(images, size=images))
        slow.append(scored(drawn, 3))
    for name, expected in zip(SCORES, np.transpose(slow), strict=True):
        assert len(found[name]) == metrics.RESAMPLES
        assert found[name].mean() == pytest.approx(expected.mean(), abs=1.0)
        assert found[name].std() == pytest.approx(expected.std(), rel=0.15)
        assert interval(found[name]) == pytest.approx(np.quantile(expected, [0.025, 0.975]), abs=3.0)


def test_a_resample_of_each_image_once_has_the_scores_that_are_reported(monkeypatch):
    class Whole:
        def multinomial(self, total, shares, size):
            return np.tile(np.rint(shares * total).astype(int), (size, 1))

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Whole())
    for states in (1, 3):
        predictions = draw(60, states, 6)
        found = resample(predictions, 8, "test/ink")  # two classes have no images
        for name, expected in zip(SCORES, scored(predictions, 8), strict=True):
            assert found[name] == pytest.approx(expected)


def test_draws_depend_on_the_seed_and_the_name_and_not_on_the_order_of_images():
    predictions = draw(80, 2)
    found = resample(predictions, 5, "held_out/ink")
    shuffled = chosen(predictions, torch.randperm(80, generator=torch.Generator().manual_seed(2)))
    again = resample(shuffled, 5, "held_out/ink")
    for name in SCORES:
        assert np.array_equal(found[name], again[name])
    for other in (resample(predictions, 5, "held_out/oil"), resample(predictions, 5, "held_out/ink", seed=1)):
        assert not np.array_equal(found["accuracy"], other["accuracy"])


def test_four_times_the_images_halve_the_interval():
    predictions = draw(100)
    (low, high) = interval(resample(predictions, 5, "a")["accuracy"])
    more = interval(resample(chosen(predictions, torch.arange(100).repeat(4)), 5, "a")["accuracy"])
    assert more[1] - more[0] == pytest.approx((high - low) / 2, rel=0.15)


def test_states_that_agree_are_no_more_images():
    """Three seeds that take each image for the same tell as much as one."""
    predictions = draw(100)
    thrice = draw(100)
    thrice = type(thrice)(thrice.labels, thrice.predicted.repeat(3, 1), thrice.confidence.repeat(3, 1))
    one = interval(resample(predictions, 5, "a")["accuracy"])
    assert interval(resample(thrice, 5, "a")["accuracy"]) == pytest.approx(one)
