"""Series of figures: means over domains first, then over seeds, of complete seeds alone."""

import statistics

import pytest

from fedvlp.results import find_records
from fedvlp.results.compare import tables
from fedvlp.results.statistics import AVERAGE, over_seeds
from fedvlp.tools.report.series import baseline, complete_series, count_seeds, domain_columns
from tests.helpers.report_runs import write_run


def test_series_agree_with_the_table(table, series):
    assert [method.label for method in series] == ["zero-shot CLIP", "PromptFL", "TRIP"]
    for method in series:
        (row,) = [row for row in table.rows if row.label == method.label and row.selection != "best"]
        assert over_seeds(method.means("held_out")) == row.cells[AVERAGE]
        for domain, name in list(domain_columns(series, "held_out").items())[:-1]:
            assert over_seeds(method.means(name)) == row.cells[domain]


def test_curve_is_mean_over_domains_and_deviation_over_seeds(series):
    curve = series[2].curve("held_out")
    assert list(curve) == [1, 2]
    assert curve[2].mean == statistics.fmean([52, 54, 62, 64])
    assert curve[2].deviation == statistics.stdev([57, 59])
    assert series[2].curve("validation")[1].mean == 56


def test_rounds_that_one_run_lacks_are_no_part_of_a_curve(tmp_path):
    write_run(tmp_path, [50.0, 51.0, 52.0], seed=0)
    folder = write_run(tmp_path, [50.0, 51.0, 52.0], seed=1)
    lines = (folder / "metrics.csv").read_text(encoding="utf-8").splitlines()
    (folder / "metrics.csv").write_text("\n".join([lines[0], *lines[2:]]), encoding="utf-8")
    ((method,), _) = complete_series(tables(find_records([tmp_path])[0])[0])
    assert list(method.curve("held_out")) == [2, 3]


def test_incomplete_seeds_and_methods_are_left_out(runs):
    write_run(runs, [99.0, 99.0], "photo", seed=2)
    write_run(runs, [99.0, 99.0], "photo", 0, "PLAN", {})
    (table,) = tables(find_records([runs])[0])
    series, left_out = complete_series(table)
    assert left_out == ["PLAN"]
    assert [len(method.seeds) for method in series] == [1, 2, 2]
    assert max(series[2].means("held_out")) < 99


def test_zero_shot_needs_no_seed_of_its_own(tmp_path):
    write_run(tmp_path, [], "photo", 0, "ZeroShotCLIP", {"templates": 1})
    write_run(tmp_path, [], "sketch", 1, "ZeroShotCLIP", {"templates": 1})
    ((method,), _) = complete_series(tables(find_records([tmp_path])[0])[0])
    assert method.means("held_out") == [40.0]
    assert count_seeds([method]) == "one seed"


def test_baseline_is_of_trained_methods_that_agree(series):
    assert baseline(series[1:], "held_out") == pytest.approx(40.0)
    assert baseline(series, "held_out") is None
    assert baseline(series[1:], "test") is None


def test_a_single_domain_has_no_mean_beside_it(tmp_path):
    write_run(tmp_path, [50.0])
    series, _ = complete_series(tables(find_records([tmp_path])[0])[0])
    assert domain_columns(series, "held_out") == {"photo": "held_out/photo"}
