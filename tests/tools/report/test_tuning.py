"""Figures of a search."""

from __future__ import annotations

from fedvlp.tools.report.tuning import tuning_pictures
from fedvlp.tools.tune.choice import TUNE_FILE, Choice, write_choices

TRIALS = [
    (),
    ("--model.kl_weight=0.1", "--model.loss=b"),
    ("--model.kl_weight=4", "--model.loss=a"),
    ("--model.kl_weight=2", "--model.loss=b"),
]


def lines(panel):
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in panel.lines]


def test_a_search_has_the_best_so_far_and_each_option(tmp_path):
    choices = [
        Choice("trip", "ink", TRIALS, validation=[50.0, 70.0, 60.0, 80.0], compared=[40.0, 30.0, 10.0, 20.0]),
        Choice("trip", "photo", TRIALS, validation=[60.0, 40.0, 90.0, 30.0], compared=[20.0, 50.0, 60.0, 70.0]),
        Choice("zero_shot", "ink", [()], validation=[55.0], compared=[45.0]),
    ]
    write_choices(tmp_path / TUNE_FILE, choices, ["auto"], 0)
    # As users name it: the folder of the runs of the choice.
    best, options = tuning_pictures([tmp_path / "chosen"])
    number = [1, 2, 3, 4]
    assert [lines(panel) for panel in best.figure.axes] == [
        [(number, [55.0, 65.0, 80.0, 85.0])],
        [(number, [30.0, 25.0, 45.0, 40.0])],
    ]
    weight, loss = options.figure.axes
    assert [panel.get_xlabel() for panel in (weight, loss)] == ["model.kl_weight", "model.loss"]
    assert (weight.get_xscale(), loss.get_xscale()) == ("log", "linear")
    validation, compared = [55.0, 75.0, 55.0], [40.0, 35.0, 45.0]
    assert lines(weight) == [([0.1, 4.0, 2.0], validation), ([0.1, 4.0, 2.0], compared)]
    assert lines(loss) == [(["b", "a", "b"], validation), (["b", "a", "b"], compared)]
    assert options.image().startswith(b"<?xml")
