"""Which round is reported, and when a run reports that its training did harm."""

from __future__ import annotations

import pytest

from fedvlp.results.selection import best_round, divergence, is_accuracy, last_round

HISTORY = [
    {"round": 2, "validation": 60.0, "held_out": 9.0},
    {"round": 3, "train_seconds": 5.0},
    {"round": 4, "validation": 75.0, "held_out": 3.0},
    {"round": 5, "validation": 75.0, "held_out": 8.0},
    {"round": 6, "validation": 70.0, "held_out": 99.0},
    {"round": 7, "train_seconds": 4.0},
]


def test_the_best_round_is_the_first_of_those_with_the_best_source_validation():
    assert best_round(HISTORY) is HISTORY[2]
    assert best_round(HISTORY[::-1]) is HISTORY[3]
    assert best_round([HISTORY[1]]) is None
    assert best_round([]) is None


def test_the_last_round_is_the_last_that_was_evaluated():
    assert last_round(HISTORY) is HISTORY[4]
    assert last_round(HISTORY[:3]) is HISTORY[2]
    assert last_round([HISTORY[1], HISTORY[5]]) is HISTORY[5]
    assert last_round([{"round": 8, "held_out/ink": 1.0}, HISTORY[5]])["round"] == 8
    assert last_round([]) is None


@pytest.mark.parametrize("name", ["validation", "test", "held_out", "validation/ink", "test/a/b", "held_out/test"])
def test_accuracies_begin_with_a_role(name):
    assert is_accuracy(name)


@pytest.mark.parametrize("name", ["round", "client/test", "tests", "validation_loss", "client/photo/loss", ""])
def test_other_metrics_do_not(name):
    assert not is_accuracy(name)


def run(losses, accuracies, role="validation"):
    return [{"client/a/loss": loss, role: score} for loss, score in zip(losses, accuracies, strict=True)]


@pytest.mark.parametrize(
    ("baseline", "history"),
    [
        ({"validation": 62.0}, run([1.6, 1.9], [32.0, 31.9])),
        ({"validation": 62.0}, run([9.0, 4.0], [11.0, 10.5])),
        ({}, run([1.0, 40.0], [50.0, 10.0])),
        ({"held_out": 40.0}, run([2.0, 3.0], [30.0, 20.0], "held_out")),
        ({}, [{"clients/loss/mean": 1.0}, {"clients/loss/mean": 2.0, "validation": 9.0}]),
    ],
)
def test_harm_is_said(baseline, history):
    assert divergence(baseline, history, 10).startswith("Training seems to have diverged: accuracy is ")


@pytest.mark.parametrize(
    ("baseline", "history"),
    [
        ({"validation": 62.0}, run([1.6, 1.9], [64.0, 61.0])),  # the loss rose, accuracy is well
        ({"validation": 62.0}, run([1.9, 1.6], [20.0, 31.9])),  # below the baseline, but learning
        ({"validation": 11.0}, run([1.9, 2.6], [11.0, 11.0])),  # at chance before training, too
        ({"validation": 62.0}, run([1.9], [11.0])),  # one round says nothing of a course
        ({"validation": 62.0}, [{"validation": 9.0}, {"validation": 9.0}]),  # no loss
        ({"validation": 62.0}, []),
    ],
)
def test_nothing_is_said_without_harm(baseline, history):
    assert divergence(baseline, history, 10) == ""
