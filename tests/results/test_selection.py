"""Which round is reported, of histories that neither rise nor fall."""

from __future__ import annotations

import pytest

from fedvlp.results.selection import best_round, is_accuracy, last_round

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
