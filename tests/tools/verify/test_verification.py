"""What a summary claims, beside what was found."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest

from fedvlp.tools.verify.command import contradictions, measured_contradictions, not_measured_again

MEASURED = {
    "accuracy": {"last round": {"held_out": 60.0}, "zero-shot CLIP": {"held_out": 50.0}},
    "metrics": {"last round": {"held_out": {"calibration_error": math.nan, "interval": [55.0, 65.0]}}},
}
FOUND = {
    "model": {"class_path": "fedvlp.PromptFL", "init_args": {"clip": {"name": "tiny", "pretrained": "a"}, "length": 4}},
    "split": "12ab",
    "training": {"seed": 0, "betas": (0.9, 0.99)},
}


def wrong(summary, tolerance=0.01):
    """What is wrong with a summary."""
    return contradictions(summary, FOUND) + measured_contradictions(summary, MEASURED, tolerance)


@pytest.fixture
def summary():
    """A summary that says what was found."""
    claimed = deepcopy(FOUND | MEASURED)
    claimed["training"]["betas"] = [0.9, 0.99]
    claimed["accuracy"]["last round (3)"] = claimed["accuracy"].pop("last round")
    claimed["accuracy"]["best on source validation (2)"] = {"held_out": 70.0}
    return {**claimed, "rounds": 3, "seconds": 1.5, "versions": {"torch": "2"}}


def test_nothing_contradicts(summary):
    assert wrong(summary) == []
    left_out = ["rounds", "seconds", "versions", "the row 'best on source validation (2)'"]
    assert not_measured_again(summary) == left_out


def test_where_weights_came_from_is_no_contradiction(summary):
    summary["model"]["init_args"]["clip"] = {"name": "tiny", "pretrained": "elsewhere.pt"}
    assert wrong(summary) == []


def test_measured_numbers_have_a_tolerance_and_others_none(summary):
    for claimed in (60.005, 59.995):
        summary["accuracy"]["last round (3)"]["held_out"] = claimed
        assert wrong(summary) == []
        assert wrong(summary, 0.001) == [f"accuracy.last round.held_out: the summary says {claimed}, found 60"]
    summary["training"]["betas"][0] = 0.9001
    assert wrong(summary) == ["training.betas[0]: the summary says 0.9001, found 0.9"]


def test_what_is_left_out_or_added_is_a_contradiction(summary):
    del summary["split"]
    summary["prize"] = "first"
    del summary["accuracy"]["last round (3)"]["held_out"]
    assert wrong(summary) == [
        'prize: the summary says "first", found nothing',
        'split: the summary says nothing, found "12ab"',
        "accuracy.last round.held_out: the summary says nothing, found 60",
    ]


def test_metrics_may_be_left_out_as_a_whole(summary):
    del summary["metrics"]
    assert wrong(summary) == []


def test_a_number_that_is_none(summary):
    summary["accuracy"]["last round (3)"]["held_out"] = math.nan
    assert wrong(summary, 100.0) == ["accuracy.last round.held_out: the summary says nan, found 60"]


def test_a_summary_that_contradicts_itself(summary):
    accuracy = summary["accuracy"]
    accuracy["best on source validation (3)"] = accuracy.pop("best on source validation (2)")
    (line,) = wrong(summary)
    assert line.startswith("accuracy.best on source validation (3): the summary says something else of the same round")
    accuracy["last round (2)"] = accuracy.pop("last round (3)")
    assert "accuracy.last round (2): the summary says rounds 3" in wrong(summary)


def test_a_row_of_no_known_title_hides_no_other(summary):
    summary["accuracy"] = {"last round ": {"held_out": 99.0}, **summary["accuracy"]}
    assert wrong(summary) == ["accuracy.last round : a summary has no such row"]
