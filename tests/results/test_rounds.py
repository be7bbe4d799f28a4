"""Reported rounds, the warning about diverged training, and the table at the end of a run."""

import re

from fedvlp.results.rounds import (
    accuracy_columns,
    accuracy_table,
    best_round,
    column_titles,
    divergence,
    format_accuracies,
    last_round,
)

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
    assert best_round(HISTORY, "held_out") is HISTORY[4]  # an oracle
    assert best_round(HISTORY, "test") is None


def test_the_last_round_is_the_last_that_was_evaluated():
    assert last_round(HISTORY) is HISTORY[4]
    assert last_round(HISTORY[:3]) is HISTORY[2]
    assert last_round([HISTORY[1], HISTORY[5]]) is HISTORY[5]
    assert last_round([{"round": 8, "held_out/ink": 1.0}, HISTORY[5]])["round"] == 8
    assert last_round([]) is None


def run(losses, accuracies, role="validation"):
    return [{"client/a/loss": loss, role: score} for loss, score in zip(losses, accuracies, strict=True)]


HARM = [
    ({"validation": 62.0}, run([1.6, 1.9], [32.0, 31.9])),
    ({"validation": 62.0}, run([9.0, 4.0], [11.0, 10.5])),
    ({}, run([1.0, 40.0], [50.0, 10.0])),
    ({"held_out": 40.0}, run([2.0, 3.0], [30.0, 20.0], "held_out")),
    ({}, [{"clients/loss/mean": 1.0}, {"clients/loss/mean": 2.0, "validation": 9.0}]),
]
NO_HARM = [
    ({"validation": 62.0}, run([1.6, 1.9], [64.0, 61.0])),  # the loss rose, accuracy is well
    ({"validation": 62.0}, run([1.9, 1.6], [20.0, 31.9])),  # below the baseline, but learning
    ({"validation": 11.0}, run([1.9, 2.6], [11.0, 11.0])),  # also at chance before training
    ({"validation": 62.0}, run([1.9], [11.0])),  # a single round shows no trend
    ({"validation": 62.0}, [{"validation": 9.0}, {"validation": 9.0}]),  # no loss
    ({"validation": 62.0}, []),
]


def test_divergence_is_reported():
    for baseline, history in HARM:
        assert divergence(baseline, history, 10).startswith("Training seems to have diverged: accuracy is ")
    for baseline, history in NO_HARM:
        assert divergence(baseline, history, 10) == ""


BASELINE = {"held_out/sketch": 41.0, "validation": 39.25, "validation/photo": 37.5, "validation/ink": 41.0}
TWO_ROUNDS = [
    {"round": 3, "validation": 64.0, "held_out/sketch": 30.5, "client/ink/loss": 0.5},
    {"round": 5, "validation": 61.0, "held_out/sketch": 55.125, "validation/ink": 60.0, "test/ink": 7.0, "test": 7.0},
]


BASELINES = {"zero-shot CLIP": BASELINE}


def test_rows_are_the_baselines_the_last_and_the_best_round():
    rows = accuracy_table(BASELINES, TWO_ROUNDS)
    assert rows == [
        ("zero-shot CLIP", BASELINE),
        ("last round (5)", TWO_ROUNDS[1]),
        ("best on source validation (3)", TWO_ROUNDS[0]),
    ]
    assert accuracy_table({}, TWO_ROUNDS) == rows[1:]
    assert accuracy_table(BASELINES, []) == rows[:1]
    means = {"class means": {"validation": 70.0}}
    assert accuracy_table(BASELINES | means, []) == [rows[0], *means.items()]
    assert accuracy_table({}, [{"round": 1, "held_out": 5.0}]) == [("last round (1)", {"round": 1, "held_out": 5.0})]


def test_columns_are_ordered_by_role_with_the_mean_after_the_domains():
    assert accuracy_columns(accuracy_table(BASELINES, TWO_ROUNDS)) == [
        "validation/ink",
        "validation/photo",
        "validation",
        "test/ink",
        "test",
        "held_out/sketch",
    ]


def test_the_text_has_two_decimals_and_a_dash_for_missing_values():
    lines = format_accuracies(accuracy_table(BASELINES, TWO_ROUNDS)).splitlines()
    cells = [line.split() for line in lines]
    assert cells[0] == ["accuracy", "in", "%", "ink", "photo", "mean", "ink+", "test", "mean+", "sketch*"]
    assert cells[2] == ["zero-shot", "CLIP", "41.00", "37.50", "39.25", "-", "-", "41.00"]
    assert cells[3] == ["last", "round", "(5)", "60.00", "-", "61.00", "7.00", "7.00", "55.12"]
    assert cells[4] == ["best", "on", "source", "validation", "(3)", "-", "-", "64.00", "-", "-", "30.50"]


def test_base_and_new_classes_have_the_columns_of_papers():
    row = {"validation/ink": 1.0, "validation": 1.0, "test/ink": 80.0, "test": 80.0, "test_new/ink": 60.0}
    row |= {"test_new": 60.0, "local/client 1": 90.0, "local": 90.0, "test_harmonic": 68.5714}
    lines = format_accuracies([("last round (2)", row)]).splitlines()
    assert re.split(r" {2,}", lines[0])[1:] == ["validation", "own classes", "Base", "New", "H"]
    assert lines[2].split()[3:] == ["1.00", "90.00", "80.00", "60.00", "68.57"]


def test_roles_measured_by_client_have_only_a_mean_column():
    row = {"validation": 1.0, "personal/a": 60.0, "personal": 75.0, "personal_worst": 60.0, "global/a": 50.0}
    columns = accuracy_columns([("last round (3)", row)])
    assert columns == ["validation", "personal", "personal_worst"]
    assert column_titles([*columns[1:], "held_out_new/ink"]) == ["own model mean", "worst own model", "ink*n"]


def by_class(largest):
    """Make scores by class for a role with two classes."""
    return {"balanced_accuracy": 51.5, "largest_class": largest, "chance": 50.0}


def test_imbalanced_classes_have_their_scores_next_to_the_mean():
    rows = [("zero-shot CLIP", {"held_out/sketch": 70.0, "held_out": 70.0}), ("last round (2)", {"held_out": 71.0})]
    balance = {"zero-shot CLIP": {"held_out": by_class(68.25)}, "last round": {"held_out": by_class(68.25)}}
    lines = format_accuracies(rows, balance).splitlines()
    assert re.split(r" {2,}", lines[0])[2:] == ["held-out mean*", "balanced*", "largest class*"]
    assert lines[2].split()[2:] == ["70.00", "70.00", "51.50", "68.25"]
    assert lines[3].split()[3:] == ["-", "71.00", "51.50", "68.25"]
    even = {title: {"held_out": by_class(54.5)} for title in balance}
    assert format_accuracies(rows, even) == format_accuracies(rows)
