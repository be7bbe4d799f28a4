"""Bars and boxes: their heights, and what is said of them."""

import itertools

import pytest

from fedvlp.tools.report.bars import domain_bars, seed_boxes


def heights(bars):
    return [bar.get_height() for bar in bars]


def test_domain_bars(series):
    picture = domain_bars(series, "held_out")
    (axes,) = picture.figure.axes
    drawn = [container for container in axes.containers if hasattr(container, "patches")]
    assert {bars.get_label(): heights(bars) for bars in drawn} == {
        "zero-shot CLIP": [40, 40, 40],
        "PromptFL": [44, 54, 49],
        "TRIP": [53, 63, 58],
    }
    assert [text.get_text() for text in axes.get_xticklabels()] == ["photo", "sketch", "mean"]
    assert axes.get_ylim()[0] == 0
    patches = [bars.patches[0] for bars in drawn]
    assert len({(patch.get_facecolor(), patch.get_hatch()) for patch in patches}) == 3
    assert len({patch.get_hatch() for patch in patches}) == 3
    assert "TRIP: photo 53.0 ± 1.4 %, sketch 63.0 ± 1.4 %, mean 58.0 ± 1.4 %." in picture.alt


def test_bars_of_one_group_stand_side_by_side(series):
    axes = domain_bars(series, "held_out").figure.axes[0]
    bars = [container[0] for container in axes.containers if hasattr(container, "patches")]
    first = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars)
    assert all(left[1] == pytest.approx(right[0]) for left, right in itertools.pairwise(first))


def test_zero_shot_crosses_each_group_where_no_bar_is_of_it(series):
    picture = domain_bars(series[1:], "held_out")
    dotted = [line for line in picture.figure.axes[0].lines if line.get_linestyle() == ":"]
    assert [list(line.get_ydata()) for line in dotted] == [[40, 40]] * 3
    assert "dotted: zero-shot CLIP" in picture.caption
    assert "Zero-shot CLIP: photo 40.0 %, sketch 40.0 %, mean 40.0 %." in picture.alt


def test_seed_boxes():
    picture = seed_boxes({"Art": [80.0, 81.0, 84.0], "Real": [90.0, 91.0, 92.0]}, "TRIP, held-out", "inference")
    (axes,) = picture.figure.axes
    dots = {line.get_label(): list(line.get_ydata()) for line in axes.lines if line.get_marker() in ("o", "s")}
    assert dots == {"Art": [80, 81, 84], "Real": [90, 91, 92]}
    medians = [
        line.get_ydata()[0] for line in axes.lines if line.get_linewidth() == 1.5 and line.get_linestyle() == "-"
    ]
    assert medians == [81, 91]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["Art", "Real"]
    assert "TRIP, held-out accuracy under 3 inference seeds" in picture.caption
    assert "Art: median 81.0 %, 80.0 to 84.0 %." in picture.alt


def test_boxes_of_long_names_have_a_legend():
    names = [f"TRIP (num_experts={count}, prompt_length=1)" for count in (2, 4)]
    picture = seed_boxes({name: [50.0, 51.0, 52.0] for name in names}, "Mean held-out", "training")
    assert [text.get_text() for text in picture.figure.legends[0].get_texts()] == names
    assert not picture.figure.axes[0].get_xticklabels()
