"""Scores of splits and roles: means over domains, and whose accuracy is the lowest."""

from __future__ import annotations

import json

import pytest
import torch

from fedvlp.core.metrics import all_scores, detection
from fedvlp.core.predictions import Predictions
from tests.helpers.predictions import draw

NAMES = ["owl", "dog", "cat", "eel", "asp", "never"]
PREDICTIONS = {
    "test/ink": draw(90, 2, clients=("one", "two"), seed=1),
    "test/oil": draw(40, 1, clients=("two",), seed=2, right=0.4),
    "held_out/pen": draw(50, 3, clients=("one", "two", "three"), seed=3),
    "out_of_distribution/noise": draw(30, 3, clients=("one", "two", "three"), seed=4),
}
FOUND = all_scores(PREDICTIONS, NAMES)


def right(predictions, row=None):
    """The share of images that a state is right on, or the mean over states, in percent."""
    rows = [predictions.predicted[row]] if row is not None else predictions.predicted
    shares = [sum(map(int.__eq__, each.tolist(), predictions.labels.tolist())) / len(each) for each in rows]
    return 100 * sum(shares) / len(shares)


def test_roles_have_means_over_domains():
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


def test_the_worst_domain_and_client():
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
    labels = torch.tensor([0, 1]).int()
    shared = Predictions(labels, torch.tensor([[0, 0]]).int(), torch.ones(1, 2), ("a", "b"))
    found = all_scores({"test/ink": shared, "held_out/pen": Predictions(labels, labels[None], torch.ones(1, 2))}, "xy")
    assert found["test"]["worst_client"] == {"name": "a", "accuracy": 50.0}
    assert "worst_client" not in found["held_out"]


def test_where_each_client_has_a_split_there_is_a_worst_client_and_no_domain():
    own = {f"personal/{name}": draw(30, clients=(name,), seed=seed) for seed, name in enumerate(("one", "two"))}
    found = all_scores(own, NAMES)
    worst = min(own, key=lambda name: right(own[name]))
    assert found["personal"]["worst_client"] == {"name": worst[9:], "accuracy": found[worst]["accuracy"]}
    assert "worst_domain" not in found["personal"]


def test_classes_without_images_have_no_accuracy():
    labels = PREDICTIONS["test/ink"].labels.tolist()
    assert FOUND["test/ink"]["class_accuracy"].keys() == {NAMES[label] for label in labels}


def test_a_split_may_have_classes_of_its_own():
    labels = torch.tensor([0, 1, 1]).int()
    others = Predictions(labels, torch.tensor([[0, 1, 0]]).int(), torch.ones(1, 3), (), ("new", "newer"))
    found = all_scores({**PREDICTIONS, "held_out_new/pen": others}, NAMES)
    assert found["held_out_new/pen"]["class_accuracy"] == {"new": 100.0, "newer": 50.0}
    assert found["test"] == FOUND["test"]


def test_images_of_no_class_are_told_apart_in_each_split_and_on_average():
    expected = {}
    for name in ("test/ink", "test/oil"):
        expected[name] = detection(PREDICTIONS[name], PREDICTIONS["out_of_distribution/noise"])
        assert FOUND[name]["out_of_distribution"] == {"noise": expected[name]}
    mean = (expected["test/ink"]["auroc"] + expected["test/oil"]["auroc"]) / 2
    assert FOUND["test"]["out_of_distribution"]["noise"]["auroc"] == pytest.approx(mean)
    inside = {name: each for name, each in PREDICTIONS.items() if not name.startswith("out_of")}
    assert "out_of_distribution" not in all_scores(inside, NAMES)["test"]


def test_json_holds_them():
    assert json.loads(json.dumps(FOUND, allow_nan=False)) == FOUND
