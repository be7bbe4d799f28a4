"""The table at the end of a run: its rows, the order of its columns, and their titles."""

from __future__ import annotations

from fedvlp.results.accuracy_table import accuracy_columns, accuracy_table, format_accuracies

BASELINE = {"held_out/sketch": 41.0, "validation": 39.25, "validation/photo": 37.5, "validation/ink": 41.0}
HISTORY = [
    {"round": 3, "validation": 64.0, "held_out/sketch": 30.5, "client/ink/loss": 0.5},
    {"round": 5, "validation": 61.0, "held_out/sketch": 55.125, "validation/ink": 60.0, "test/ink": 7.0, "test": 7.0},
]


def test_rows_are_the_baseline_the_last_and_the_best_round():
    rows = accuracy_table(BASELINE, HISTORY)
    assert rows == [
        ("zero-shot CLIP", BASELINE),
        ("last round (5)", HISTORY[1]),
        ("best on source validation (3)", HISTORY[0]),
    ]
    assert accuracy_table({}, HISTORY) == rows[1:]
    assert accuracy_table(BASELINE, []) == rows[:1]
    assert accuracy_table({}, [{"round": 1, "held_out": 5.0}]) == [("last round (1)", {"round": 1, "held_out": 5.0})]


def test_columns_are_ordered_by_role_with_the_mean_behind_the_domains():
    assert accuracy_columns(accuracy_table(BASELINE, HISTORY)) == [
        "validation/ink",
        "validation/photo",
        "validation",
        "test/ink",
        "test",
        "held_out/sketch",
    ]


def test_the_text_has_two_decimals_and_a_dash_for_what_was_not_measured():
    lines = format_accuracies(accuracy_table(BASELINE, HISTORY)).splitlines()
    cells = [line.split() for line in lines]
    assert cells[0] == ["accuracy", "in", "%", "ink", "photo", "mean", "ink+", "test", "mean+", "sketch*"]
    assert cells[2] == ["zero-shot", "CLIP", "41.00", "37.50", "39.25", "-", "-", "41.00"]
    assert cells[3] == ["last", "round", "(5)", "60.00", "-", "61.00", "7.00", "7.00", "55.12"]
    assert cells[4] == ["best", "on", "source", "validation", "(3)", "-", "-", "64.00", "-", "-", "30.50"]
