"""Curves: which lines are drawn, and what is said of them."""

import numpy as np
import pytest

from fedvlp.results import find_records
from fedvlp.tools.report.curves import accuracy_over_communication, accuracy_over_rounds, option_curve
from fedvlp.tools.report.options import option_studies
from tests.helpers.report_runs import write_run


def lines(axes):
    """The labelled lines of some axes."""
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def points(container):
    """Places, means and deviations of drawn points."""
    line = container[0]
    (bars,) = container[2]
    halves = [np.ptp(segment[:, 1]) / 2 for segment in bars.get_segments()]
    return list(line.get_xdata()), list(line.get_ydata()), halves


def legend(picture):
    return [text.get_text() for text in picture.figure.legends[0].get_texts()]


def test_accuracy_over_rounds(series):
    picture = accuracy_over_rounds(series, "held_out")
    above, below = picture.figure.axes
    assert (above.get_ylabel(), below.get_ylabel()) == ("held-out (%)", "source validation (%)")
    drawn = lines(above)
    assert list(drawn) == legend(picture) == ["zero-shot CLIP", "PromptFL", "TRIP"]
    assert list(drawn["TRIP"].get_xdata()) == [1, 2]
    assert list(drawn["TRIP"].get_ydata()) == [55, 58]
    assert list(lines(below)["PromptFL"].get_ydata()) == [51, 50]
    assert list(drawn["zero-shot CLIP"].get_ydata()) == [40, 40]
    band = above.collections[-1].get_paths()[0].vertices
    at_the_end = band[band[:, 0] == 2, 1]
    assert at_the_end.min() == pytest.approx(58 - np.sqrt(2))
    assert at_the_end.max() == pytest.approx(58 + np.sqrt(2))
    assert "photo, sketch" in picture.caption
    assert "2 seeds" in picture.caption
    assert "TRIP, held-out: 55.0 % in round 1, 58.0 % in round 2." in picture.alt


def test_lines_differ_in_more_than_colour(series):
    drawn = lines(accuracy_over_rounds(series[1:], "held_out").figure.axes[0])
    assert drawn["PromptFL"].get_marker() != drawn["TRIP"].get_marker()
    assert drawn["PromptFL"].get_linestyle() != drawn["TRIP"].get_linestyle() or (
        drawn["PromptFL"]._dash_pattern != drawn["TRIP"]._dash_pattern
    )


def test_zero_shot_is_a_dotted_line_where_no_row_is_of_it(series):
    drawn = lines(accuracy_over_rounds(series[1:], "held_out").figure.axes[0])
    assert drawn["zero-shot CLIP"].get_linestyle() == ":"
    assert list(drawn["zero-shot CLIP"].get_ydata()) == [40, 40]


def test_validation_alone_has_one_panel(series):
    assert len(accuracy_over_rounds(series, "validation").figure.axes) == 1


def test_accuracy_over_communication(series):
    picture = accuracy_over_communication(series, "held_out")
    (axes,) = picture.figure.axes
    assert axes.get_xscale() == "log"
    drawn = {container.get_label(): points(container) for container in axes.containers}
    assert drawn["TRIP"] == ([800], [58], pytest.approx([np.sqrt(2)]))
    assert drawn["PromptFL"] == ([200], [49], pytest.approx([0]))
    assert list(lines(axes)["zero-shot CLIP"].get_ydata()) == [40, 40]
    assert "TRIP: 58.0 ± 1.4 % at 800." in picture.alt


def test_option_curve(tmp_path):
    for length, value in ((1, 50.0), (4, 60.0), (16, 55.0)):
        for held_out, more in (("photo", 0.0), ("sketch", 2.0)):
            write_run(tmp_path, [value + more], held_out, options={"prompt_length": length, "num_experts": 4})
    (study,) = option_studies(find_records([tmp_path])[0])
    picture = option_curve(study.method, study.option, study.series, "held_out")
    (axes,) = picture.figure.axes
    drawn = {container.get_label(): container for container in axes.containers}
    assert list(drawn) == ["photo", "sketch", "mean"]
    line = drawn["mean"][0]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([1, 4, 16], [51, 61, 56])
    assert line.get_linewidth() > drawn["photo"][0].get_linewidth()
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "prompt_length")
    assert "sketch: 52.0 % at 1; 62.0 % at 4; 57.0 % at 16." in picture.alt
