"""Figures of a table: their content, and the choice of figures."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_hex

from fedvlp.results import find_records
from fedvlp.results.figures import MAX_SERIES
from fedvlp.tools.compare.tables import tables
from fedvlp.tools.report.figures import (
    accuracy_over_communication,
    accuracy_over_rounds,
    domain_bars,
    draw_figures,
    history_frame,
)
from tests.helpers.report_runs import write_run


def table_of(folder):
    (table,) = tables(find_records([folder])[0])
    return table


def lines(axes):
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def points(container):
    """List x values, means and deviations of drawn points."""
    (bars,) = container[2]
    halves = [np.ptp(segment[:, 1]) / 2 for segment in bars.get_segments()]
    return list(container[0].get_xdata()), list(container[0].get_ydata()), halves


def titles(folder):
    return [picture.title for picture in draw_figures(table_of(folder))]


def test_accuracy_over_rounds(table):
    picture = accuracy_over_rounds(table)
    left, right = picture.figure.axes
    assert (left.get_ylabel(), right.get_ylabel()) == ("held-out (%)", "source validation (%)")
    drawn = lines(left)
    assert set(drawn) == {"promptfl", "trip", "zero-shot CLIP"}
    assert list(drawn["trip"].get_xdata()) == [1, 2]
    assert list(drawn["trip"].get_ydata()) == [55, 58]
    assert list(lines(right)["promptfl"].get_ydata()) == [51, 50]
    assert (drawn["zero-shot CLIP"].get_linestyle(), list(drawn["zero-shot CLIP"].get_ydata())) == (":", [40, 40])
    assert drawn["promptfl"].get_marker() != drawn["trip"].get_marker()
    band = left.collections[-1].get_paths()[0].vertices
    at_the_end = band[band[:, 0] == 2, 1]
    assert (at_the_end.min(), at_the_end.max()) == pytest.approx((58 - np.sqrt(2), 58 + np.sqrt(2)))


def test_seeds_and_methods_without_every_domain_are_in_no_figure(runs):
    write_run(runs, [99.0, 99.0], "photo", seed=2)
    write_run(runs, [99.0, 99.0], "photo", 0, "PLAN", {})
    table = table_of(runs)
    assert {method for method, _ in table.compared_rows} == {"zero-shot CLIP", "promptfl", "trip"}
    histories = history_frame(table, "held_out")
    assert set(histories["seed"]) == {0, 1}
    assert "plan" not in set(histories["method"])
    # A round that one seed lacks is not in the curve either.
    (folder,) = runs.glob("TRIP*-photo-0/*")
    text = (folder / "metrics.csv").read_text(encoding="utf-8").splitlines()
    (folder / "metrics.csv").write_text("\n".join([text[0], *text[2:]]), encoding="utf-8")
    assert list(lines(accuracy_over_rounds(table_of(runs)).figure.axes[0])["trip"].get_xdata()) == [2]


def test_accuracy_over_communication(table):
    (axes,) = accuracy_over_communication(table, ["promptfl", "trip"]).figure.axes
    assert axes.get_xscale() == "log"
    drawn = {container.get_label(): points(container) for container in axes.containers}
    assert drawn["trip"] == ([800], [58], pytest.approx([np.sqrt(2)]))
    assert drawn["promptfl"] == ([200], [49], pytest.approx([0]))


def test_domain_bars(table):
    (axes,) = domain_bars(table, table.compared_rows).figure.axes
    drawn = [container for container in axes.containers if hasattr(container, "patches")]
    assert {bars.get_label(): [bar.get_height() for bar in bars] for bars in drawn} == {
        "zero-shot CLIP": [40, 40, 40],
        "promptfl": [44, 54, 49],
        "trip": [53, 63, 58],
    }
    assert [text.get_text() for text in axes.get_xticklabels()] == ["photo", "sketch", "average of 2 of 3"]
    assert axes.get_ylim()[0] == 0
    assert len({bars.patches[0].get_hatch() for bars in drawn}) == 3
    first = sorted((bars[0].get_x(), bars[0].get_x() + bars[0].get_width()) for bars in drawn)
    assert all(left[1] == pytest.approx(right[0]) for left, right in itertools.pairwise(first))


def test_one_round_has_no_curve_and_no_upload_no_communication_figure(tmp_path):
    folder = write_run(tmp_path, [50.0], parameters=0)
    text = (folder / "summary.json").read_text(encoding="utf-8")
    (folder / "summary.json").write_text(text.replace("one client per domain", "centralised, not federated"))
    assert titles(tmp_path) == ["Accuracy of each domain"]


def test_many_methods_are_several_figures(tmp_path):
    for index in range(MAX_SERIES + 2):
        write_run(tmp_path, [50.0], method=f"Method{index}", options={})
    pictures = {picture.title: picture for picture in draw_figures(table_of(tmp_path))}
    for part in ("1 of 2", "2 of 2"):
        axes = pictures[f"Accuracy of each domain ({part})"].figure.axes[0]
        bars = [container for container in axes.containers if hasattr(container, "patches")]
        colours = {to_hex(container.patches[0].get_facecolor()) for container in bars}
        assert len(bars) == len(colours) <= MAX_SERIES
