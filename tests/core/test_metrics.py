"""Scores of predictions, compared with slow loops: classes, confidence, and intervals over images."""

from dataclasses import replace

import numpy as np
import pytest

from fedvlp.core.metrics import all_scores, class_scores, detection
from fedvlp.core.predictions import RESAMPLES, Predictions, calibration_errors, interval, resample
from tests.helpers.predictions import draw, select_images


def slow_class_scores(predictions, classes):
    """Compute accuracy and F1, one class at a time, for classes with images or predictions."""
    pairs = []
    for row in predictions.predicted.tolist():
        pairs += zip(predictions.labels.tolist(), row, strict=True)
    accuracies = {}
    f1 = {}
    for label in range(classes):
        right = sum(true == predicted == label for true, predicted in pairs)
        images = sum(true == label for true, _ in pairs)
        positives = sum(predicted == label for _, predicted in pairs)
        if images:
            accuracies[label] = 100 * right / images
        if images or positives:
            precision = right / positives if positives else 0.0
            recall = right / images if images else 0.0
            both = precision + recall
            f1[label] = 100 * 2 * precision * recall / both if both else 0.0
    return accuracies, f1


@pytest.mark.parametrize(("images", "states", "classes"), [(1, 1, 2), (40, 1, 5), (150, 3, 7), (30, 2, 30)])
def test_class_scores_match_a_loop_over_classes(images, states, classes):
    predictions = draw(images, states, classes - 1)  # the last class has no images
    predictions.predicted[0, 0] = classes - 1
    scores = class_scores(predictions, classes)
    accuracies, f1 = slow_class_scores(predictions, classes)
    assert scores["balanced_accuracy"] == pytest.approx(sum(accuracies.values()) / len(accuracies))
    assert scores["macro_f1"] == pytest.approx(sum(f1.values()) / len(f1))
    assert scores["class_accuracy"] == pytest.approx(accuracies)


def slow_calibration(predictions, bins):
    """Average the distance between accuracy and confidence over states, weighted by the images of each bin."""
    errors = []
    for row, confidences in zip(predictions.predicted.tolist(), predictions.confidence.tolist(), strict=True):
        groups = {}
        for label, predicted, confidence in zip(predictions.labels.tolist(), row, confidences, strict=True):
            groups.setdefault(min(int(confidence * bins), bins - 1), []).append((label == predicted, confidence))
        error = 0.0
        for group in groups.values():
            accuracy = sum(right for right, _ in group) / len(group)
            confidence = sum(confidence for _, confidence in group) / len(group)
            error += len(group) / len(row) * abs(accuracy - confidence)
        errors.append(error)
    return 100 * sum(errors) / len(errors)


@pytest.mark.parametrize(("images", "states", "bins"), [(1, 1, 15), (80, 1, 15), (120, 3, 4)])
def test_the_calibration_error_matches_a_loop_over_images(images, states, bins):
    predictions = draw(images, states)
    predictions.confidence[0, 0] = 1.0
    assert calibration_errors(predictions, bins=bins)[0] == pytest.approx(slow_calibration(predictions, bins), abs=1e-4)


def slow_detection(inside, outside):
    """Compute the AUROC over all pairs of images, and the false positive rate at 95 % true positives."""
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
def test_detection_matches_a_loop_over_pairs(images, others):
    inside = draw(images, 2)
    outside = draw(others, 1, seed=7)
    inside.confidence[:, ::3] = inside.confidence[0, 0]  # ties within the classes' images
    outside.confidence[:, ::4] = inside.confidence[0, 0]  # and between both groups
    found = detection(inside, outside)
    expected = [slow_detection(row, outside.confidence[0].tolist()) for row in inside.confidence.tolist()]
    for name in ("auroc", "fpr_at_95"):
        assert found[name] == pytest.approx((expected[0][name] + expected[1][name]) / 2, abs=1e-4)


def test_each_clients_state_is_compared_only_with_itself():
    """Both clients separate all images, but their confidences have different scales."""
    labels = np.zeros(2, np.int32)
    predicted = np.zeros((2, 2), np.int32)
    inside = Predictions(labels, predicted, np.float32([[0.9, 0.8], [0.4, 0.3]]), ("a", "b"))
    outside = Predictions(labels, predicted, np.float32([[0.2, 0.1], [0.7, 0.6]]), ("b", "a"))
    assert detection(inside, outside) == {"auroc": 100.0, "fpr_at_95": 0.0}
    only_b = Predictions(labels, predicted[:1], np.float32([[0.4, 0.3]]), ("b",))  # another domain
    assert detection(only_b, outside) == {"auroc": 100.0, "fpr_at_95": 0.0}
    shared = replace(outside, predicted=predicted[:1], confidence=np.float32([[0.5, 0.5]]), clients=())
    assert detection(inside, shared) == {"auroc": 50.0, "fpr_at_95": 50.0}


def test_other_scores_are_compared_by_rank():
    """Energies far above 1 must neither saturate nor lose their order."""
    inside, outside = draw(40, 2), draw(25, 1, seed=7)
    scores = np.random.default_rng(0).normal(40, 3, (2, 40)), np.random.default_rng(1).normal(38, 3, (1, 25))
    scores[0][:, ::5] = scores[1][0, 0]
    inside = replace(inside, scores={"energy": scores[0], "mcm": inside.confidence, "gl_mcm": scores[0]})
    outside = replace(outside, scores={"energy": scores[1], "mcm": outside.confidence})
    found = detection(inside, outside)
    assert set(found) == {f"{score}{name}" for score in ("", "energy_", "mcm_") for name in ("auroc", "fpr_at_95")}
    expected = [slow_detection(row, scores[1][0].tolist()) for row in scores[0].tolist()]
    for name in ("auroc", "fpr_at_95"):
        assert found[f"mcm_{name}"] == found[name]
        assert found[f"energy_{name}"] == pytest.approx((expected[0][name] + expected[1][name]) / 2, abs=1e-4)


@pytest.mark.parametrize(("images", "states"), [(60, 1), (40, 2)])
def test_resampled_calibration_errors_match_bootstrapping_images_one_by_one(images, states):
    predictions = draw(images, states)
    error, *errors = calibration_errors(predictions, "held_out/ink")
    assert [error] == calibration_errors(predictions, resamples=0).tolist()
    generator = np.random.default_rng(5)
    slow = []
    for _ in range(400):
        slow.append(slow_calibration(select_images(predictions, generator.integers(images, size=images)), 15))
    assert len(errors) == RESAMPLES
    assert np.mean(errors) == pytest.approx(error)
    assert np.std(errors) == pytest.approx(np.std(slow), rel=0.15)
    shuffled = select_images(predictions, np.random.default_rng(2).permutation(images))
    assert calibration_errors(shuffled, "held_out/ink").tolist() == [error, *errors]
    assert calibration_errors(predictions, "held_out/oil").tolist() != [error, *errors]
    low, high = all_scores({"held_out/ink": predictions}, NAMES)["held_out"]["intervals"]["calibration_error"]
    assert (low, high) == tuple(interval(np.asarray(errors)))


SCORES = ("accuracy", "balanced_accuracy", "macro_f1")


def all_states_scores(predictions, classes):
    """Compute the reported accuracy, balanced accuracy and macro F1 over all states."""
    scores = class_scores(predictions, classes)
    return [predictions.accuracy, scores["balanced_accuracy"], scores["macro_f1"]]


@pytest.mark.parametrize(("images", "states"), [(50, 1), (35, 3)])
def test_intervals_match_bootstrapping_images_one_by_one(images, states):
    predictions = draw(images, states, 3)
    found = resample(predictions, 3, "held_out/ink")
    generator = np.random.default_rng(5)
    slow = []
    for _ in range(400):
        drawn = select_images(predictions, generator.integers(images, size=images))
        slow.append(all_states_scores(drawn, 3))
    for name, expected in zip(SCORES, np.transpose(slow), strict=True):
        assert len(found[name]) == RESAMPLES
        assert found[name].mean() == pytest.approx(expected.mean(), abs=1.0)
        assert found[name].std() == pytest.approx(expected.std(), rel=0.15)
        assert interval(found[name]) == pytest.approx(np.quantile(expected, [0.025, 0.975]), abs=3.0)


def test_resamples_depend_on_seed_and_name_but_not_on_image_order():
    predictions = draw(80, 2)
    found = resample(predictions, 5, "held_out/ink")
    shuffled = select_images(predictions, np.random.default_rng(2).permutation(80))
    again = resample(shuffled, 5, "held_out/ink")
    for name in SCORES:
        assert np.array_equal(found[name], again[name])
    for other in (resample(predictions, 5, "held_out/oil"), resample(predictions, 5, "held_out/ink", seed=1)):
        assert not np.array_equal(found["accuracy"], other["accuracy"])


NAMES = ["owl", "dog", "cat", "eel", "asp", "never"]
PREDICTIONS = {
    "test/ink": draw(90, 2, clients=("one", "two"), seed=1),
    "test/oil": draw(40, 1, clients=("two",), seed=2, right=0.4),
    "held_out/pen": draw(50, 3, clients=("one", "two", "three"), seed=3),
    "out_of_distribution/noise": draw(30, 3, clients=("one", "two", "three"), seed=4),
}
FOUND = all_scores(PREDICTIONS, NAMES)


def right(predictions, row=None):
    """Compute the accuracy in percent of one state, or the mean over all states."""
    rows = [predictions.predicted[row]] if row is not None else predictions.predicted
    shares = [sum(map(int.__eq__, each.tolist(), predictions.labels.tolist())) / len(each) for each in rows]
    return 100 * sum(shares) / len(shares)


def test_scores_of_roles_average_their_domains():
    assert list(FOUND) == ["test/ink", "test/oil", "held_out/pen", "test", "held_out"]
    for name in ("test/ink", "test/oil", "held_out/pen"):
        assert FOUND[name]["accuracy"] == pytest.approx(right(PREDICTIONS[name]), abs=1e-4)
        assert FOUND[name]["images"] == len(PREDICTIONS[name].labels)
    for score in ("accuracy", "balanced_accuracy", "macro_f1", "calibration_error"):
        assert FOUND["test"][score] == pytest.approx((FOUND["test/ink"][score] + FOUND["test/oil"][score]) / 2)
        assert FOUND["held_out"][score] == FOUND["held_out/pen"][score]
    low, high = FOUND["test"]["intervals"]["accuracy"]
    assert low < FOUND["test"]["accuracy"] < high
    widths = [end - start for start, end in (FOUND[name]["intervals"]["accuracy"] for name in ("test/ink", "test/oil"))]
    assert high - low == pytest.approx((widths[0] ** 2 + widths[1] ** 2) ** 0.5 / 2, rel=0.1)  # independent domains


def test_the_worst_domain_and_client_are_named():
    assert FOUND["test"]["worst_domain"]["name"] == "oil"
    assert FOUND["test"]["worst_domain"]["accuracy"] == FOUND["test/oil"]["accuracy"]
    one = right(PREDICTIONS["test/ink"], 0)
    two = (right(PREDICTIONS["test/ink"], 1) + right(PREDICTIONS["test/oil"], 0)) / 2
    worst = FOUND["test"]["worst_client"]
    assert worst["accuracy"] == pytest.approx(min(one, two), abs=1e-4)
    assert worst["name"] == ("one" if one < two else "two")
    rows = [right(PREDICTIONS["held_out/pen"], row) for row in range(3)]
    assert FOUND["held_out"]["worst_client"]["accuracy"] == pytest.approx(min(rows), abs=1e-4)


def test_clients_that_share_a_state_share_its_accuracy():
    labels = np.int32([0, 1])
    shared = Predictions(labels, np.int32([[0, 0]]), np.ones((1, 2), np.float32), ("a", "b"))
    right = replace(shared, predicted=labels[None], clients=())
    found = all_scores({"test/ink": shared, "held_out/pen": right}, "xy")
    assert found["test"]["worst_client"] == {"name": "a", "accuracy": 50.0}
    assert "worst_client" not in found["held_out"]


def test_splits_per_client_have_a_worst_client_but_no_worst_domain():
    own = {f"personal/{name}": draw(30, clients=(name,), seed=seed) for seed, name in enumerate(("one", "two"))}
    found = all_scores(own, NAMES)
    worst = min(own, key=lambda name: right(own[name]))
    assert found["personal"]["worst_client"] == {"name": worst[9:], "accuracy": found[worst]["accuracy"]}
    assert "worst_domain" not in found["personal"]


def test_a_split_may_have_its_own_classes():
    labels = np.int32([0, 1, 1])
    others = Predictions(labels, np.int32([[0, 1, 0]]), np.ones((1, 3), np.float32), (), ("new", "newer"))
    found = all_scores({**PREDICTIONS, "held_out_new/pen": others}, NAMES)
    assert found["held_out_new/pen"]["class_accuracy"] == {"new": 100.0, "newer": 50.0}
    assert found["test"] == FOUND["test"]


def test_out_of_distribution_detection_is_scored_per_split_and_on_average():
    expected = {}
    for name in ("test/ink", "test/oil"):
        expected[name] = detection(PREDICTIONS[name], PREDICTIONS["out_of_distribution/noise"])
        assert FOUND[name]["out_of_distribution"] == {"noise": expected[name]}
    mean = (expected["test/ink"]["auroc"] + expected["test/oil"]["auroc"]) / 2
    assert FOUND["test"]["out_of_distribution"]["noise"]["auroc"] == pytest.approx(mean)
    inside = {name: each for name, each in PREDICTIONS.items() if not name.startswith("out_of")}
    assert "out_of_distribution" not in all_scores(inside, NAMES)["test"]
