"""Rows of figures: means over domains first, then over seeds, of complete seeds alone."""

import statistics

import pytest

from fedvlp.report.rows import baseline, columns_of, complete_rows, seed_counts
from fedvlp.results import find_records
from fedvlp.results.compare import tables
from fedvlp.results.statistics import AVERAGE, over_seeds
from tests.helpers.report_runs import write_run


def test_rows_agree_with_the_table(table, rows):
    assert [row.label for row in rows] == ["zero-shot CLIP", "PromptFL", "TRIP"]
    for row in rows:
        (line,) = [line for line in table.lines if line.label == row.label and line.selection != "best"]
        assert over_seeds(row.means("held_out")) == line.cells[AVERAGE]
        for domain, name in list(columns_of(rows, "held_out").items())[:-1]:
            assert over_seeds(row.means(name)) == line.cells[domain]


def test_curve_is_mean_over_domains_and_deviation_over_seeds(rows):
    curve = rows[2].curve("held_out")
    assert list(curve) == [1, 2]
    assert curve[2].mean == statistics.fmean([52, 54, 62, 64])
    assert curve[2].deviation == statistics.stdev([57, 59])
    assert rows[2].curve("validation")[1].mean == 56


def test_rounds_that_one_run_lacks_are_no_part_of_a_curve(tmp_path):
    write_run(tmp_path, [50.0, 51.0, 52.0], seed=0)
    folder = write_run(tmp_path, [50.0, 51.0, 52.0], seed=1)
    lines = (folder / "metrics.csv").read_text(encoding="utf-8").splitlines()
    (folder / "metrics.csv").write_text("\n".join([lines[0], *lines[2:]]), encoding="utf-8")
    ((row,), _) = complete_rows(tables(find_records([tmp_path])[0])[0])
    assert list(row.curve("held_out")) == [2, 3]


def test_incomplete_seeds_and_rows_are_left_out(runs):
    write_run(runs, [99.0, 99.0], "photo", seed=2)
    write_run(runs, [99.0, 99.0], "photo", 0, "PLAN", {})
    (table,) = tables(find_records([runs])[0])
    rows, left_out = complete_rows(table)
    assert left_out == ["PLAN"]
    assert [len(row.seeds) for row in rows] == [1, 2, 2]
    assert max(rows[2].means("held_out")) < 99


def test_zero_shot_needs_no_seed_of_its_own(tmp_path):
    write_run(tmp_path, [], "photo", 0, "ZeroShotCLIP", {"templates": 1})
    write_run(tmp_path, [], "sketch", 1, "ZeroShotCLIP", {"templates": 1})
    ((row,), _) = complete_rows(tables(find_records([tmp_path])[0])[0])
    assert row.means("held_out") == [40.0]
    assert seed_counts([row]) == "one seed"


def test_baseline_is_of_trained_rows_that_agree(rows):
    assert baseline(rows[1:], "held_out") == pytest.approx(40.0)
    assert baseline(rows, "held_out") is None
    assert baseline(rows[1:], "test") is None


def test_a_single_domain_has_no_mean_beside_it(tmp_path):
    write_run(tmp_path, [50.0])
    rows, _ = complete_rows(tables(find_records([tmp_path])[0])[0])
    assert columns_of(rows, "held_out") == {"photo": "held_out/photo"}
