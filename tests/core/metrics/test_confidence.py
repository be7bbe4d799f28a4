"""Calibration and detection against loops over images, and what must not change them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedvlp.core.metrics import calibration_error, detection
from fedvlp.core.predictions import Predictions
from tests.helpers.predictions import chosen, draw, renamed


def calibration_by_hand(predictions, bins):
    """The mean over states of the distance between accuracy and confidence, weighted by bins' images."""
    errors = []
    for row, sure in zip(predictions.predicted.tolist(), predictions.confidence.tolist(), strict=True):
        groups = {}
        for label, taken, confidence in zip(predictions.labels.tolist(), row, sure, strict=True):
            groups.setdefault(min(int(confidence * bins), bins - 1), []).append((label == taken, confidence))
        error = 0.0
        for group in groups.values():
            accuracy = sum(right for right, _ in group) / len(group)
            confidence = sum(confidence for _, confidence in group) / len(group)
            error += len(group) / len(row) * abs(accuracy - confidence)
        errors.append(error)
    return 100 * sum(errors) / len(errors)


@pytest.mark.parametrize(("images", "states", "bins"), [(1, 1, 15), (80, 1, 15), (120, 3, 4)])
def test_the_calibration_error_is_that_of_a_loop_over_images(images, states, bins):
    predictions = draw(images, states)
    predictions.confidence[0, 0] = 1.0
    assert calibration_error(predictions, bins) == pytest.approx(calibration_by_hand(predictions, bins), abs=1e-4)


def test_a_sure_and_right_method_has_no_error_and_a_sure_and_wrong_one_all_of_it():
    sure = Predictions(torch.tensor([0, 1]).int(), torch.tensor([[0, 1]]).int(), torch.ones(1, 2))
    assert calibration_error(sure) == pytest.approx(0.0, abs=1e-9)
    assert calibration_error(replace(sure, predicted=1 - sure.predicted)) == pytest.approx(100.0)


def test_order_of_images_names_of_classes_and_repeats_change_no_bit_of_the_calibration_error():
    predictions = draw(300, 2)
    error = calibration_error(predictions)
    for seed in range(3):
        order = torch.randperm(300, generator=torch.Generator().manual_seed(seed))
        assert calibration_error(chosen(predictions, order)) == error
    assert calibration_error(chosen(predictions, torch.arange(300).repeat(2))) == error
    assert calibration_error(renamed(predictions, [4, 2, 0, 1, 3])) == error


def detection_by_hand(inside, outside):
    """The chance that an image of the classes is surer than another, and the false positives at 95 %."""
    wins = 0.0
    for sure in inside:
        for other in outside:
            wins += 1.0 if sure > other else 0.5 if sure == other else 0.0
    rates = []
    for threshold in inside:
        if sum(sure >= threshold for sure in inside) >= 0.95 * len(inside):
            rates.append(sum(other >= threshold for other in outside) / len(outside))
    return {"auroc": 100 * wins / len(inside) / len(outside), "fpr_at_95": 100 * min(rates)}


@pytest.mark.parametrize(("images", "others"), [(1, 1), (40, 25), (20, 60)])
def test_detection_is_that_of_a_loop_over_pairs(images, others):
    inside = draw(images, 2)
    outside = draw(others, 1, seed=7)
    inside.confidence[:, ::3] = inside.confidence[0, 0]  # ties among themselves
    outside.confidence[:, ::4] = inside.confidence[0, 0]  # and with each other
    found = detection(inside, outside)
    by_hand = [detection_by_hand(row, outside.confidence[0].tolist()) for row in inside.confidence.tolist()]
    for name in ("auroc", "fpr_at_95"):
        assert found[name] == pytest.approx((by_hand[0][name] + by_hand[1][name]) / 2, abs=1e-4)


def test_order_changes_no_bit_of_detection_and_a_rising_map_changes_nothing():
    inside = draw(90)
    outside = draw(70, seed=3)
    found = detection(inside, outside)
    assert detection(chosen(inside, torch.arange(90).flip(0)), chosen(outside, torch.arange(70).flip(0))) == found
    risen = [replace(each, confidence=each.confidence.double().pow(3).float()) for each in (inside, outside)]
    assert detection(*risen) == pytest.approx(found)
    swapped = detection(outside, inside)["auroc"]
    assert swapped == pytest.approx(100 - found["auroc"], abs=1e-4)


def test_each_client_s_state_is_compared_with_itself():
    """Both clients tell all images apart, on different scales; each other's images they would mistake."""
    labels = torch.zeros(2).int()
    predicted = torch.zeros(2, 2).int()
    inside = Predictions(labels, predicted, torch.tensor([[0.9, 0.8], [0.4, 0.3]]), ("a", "b"))
    outside = Predictions(labels, predicted, torch.tensor([[0.2, 0.1], [0.7, 0.6]]), ("b", "a"))
    assert detection(inside, outside) == {"auroc": 100.0, "fpr_at_95": 0.0}
    of_b = Predictions(labels, predicted[:1], torch.tensor([[0.4, 0.3]]), ("b",))  # a domain of its own
    assert detection(of_b, outside) == {"auroc": 100.0, "fpr_at_95": 0.0}
    shared = replace(outside, predicted=predicted[:1], confidence=torch.tensor([[0.5, 0.5]]), clients=())
    assert detection(inside, shared) == {"auroc": 50.0, "fpr_at_95": 50.0}
