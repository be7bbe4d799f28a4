"""When a run says that its training did harm."""

import pytest

from fedvlp.results.divergence import divergence


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
