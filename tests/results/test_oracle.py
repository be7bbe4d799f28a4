"""The oracle against a loop over rounds; it stands beside the table, and nothing that is reported depends on it."""

from __future__ import annotations

import statistics

import pytest

from fedvlp.results.compare import tables
from fedvlp.results.finding import finding
from fedvlp.results.oracle import differences, oracle_round
from fedvlp.results.paper_methods import matching_rows
from fedvlp.results.ranking import contestants, ranked
from fedvlp.results.rendering import render_table
from fedvlp.results.tidy import tidy_rows
from tests.helpers.records import make_record

CURVES = {
    ("photo", 0): [50.0, 56.0, 54.0],
    ("photo", 1): [51.0, None, 53.0],  # a round that was not evaluated
    ("sketch", 0): [40.0, 41.5, 45.0],  # the last is the best
    ("sketch", 1): [47.0, 44.0, 43.0],
}
ALL = ("last", "best", "oracle")


def with_history(held_out, seed, values, role="held_out", **other):
    """A run whose accuracies of each round are these, and whose source validation chose the second."""
    record = make_record(values[-1], best=values[1] or 1.0, held_out=held_out, seed=seed, **other)
    rows = []
    for number, value in enumerate(values, start=1):
        measured = {} if value is None else {f"{role}/{held_out}": value, role: value, "validation": 60.0}
        rows.append({"round": float(number), **measured})
    vars(record)["history"] = rows
    return record


def runs(**other):
    return [with_history(domain, seed, values, **other) for (domain, seed), values in CURVES.items()]


def by_hand():
    """The mean over domains of the highest accuracy of any round, and what the last lacks of it, for each seed."""
    best = {}
    gap = {}
    for seed in (0, 1):
        of_seed = [[v for v in values if v is not None] for (_, each), values in CURVES.items() if each == seed]
        best[seed] = statistics.mean(max(values) for values in of_seed)
        gap[seed] = best[seed] - statistics.mean(values[-1] for values in of_seed)
    return best, gap


def test_each_run_has_its_highest_round_and_the_gap_is_paired_by_seed():
    (table,) = tables(runs(), ALL)
    rows = {row.selection: row for row in table.rows}
    best, gap = by_hand()
    oracle = rows["oracle"]
    assert oracle.cells["photo"].mean == pytest.approx((56.0 + 53.0) / 2)
    assert oracle.cells["sketch"].mean == pytest.approx((45.0 + 47.0) / 2)
    assert oracle.cells["average"].mean == pytest.approx(statistics.mean(best.values()))
    assert oracle.gap.mean == pytest.approx(statistics.mean(gap.values()))
    assert oracle.gap.deviation == pytest.approx(statistics.stdev(gap.values()))
    assert rows["last"].gap is rows["best"].gap is rows[""].gap is None


def test_the_table_says_that_it_is_not_allowed():
    (table,) = tables(runs(), ALL)
    rendered = render_table(table)
    cells = {row[1]: dict(zip(rendered.head, row, strict=True)) for row in rendered.rows}
    assert cells["oracle, not allowed"]["gap to last"] == "+1.5 ± 0.7"
    assert cells["last"]["gap to last"] == cells["best"]["gap to last"] == cells["-"]["gap to last"] == "-"
    assert "it is no result" in " ".join(rendered.lines)
    (gap,) = [row for row in tidy_rows(table, 1) if row["column"] == "gap to last"]
    assert (gap["round"], gap["mean"], gap["n"]) == ("oracle", pytest.approx(1.5), 2)


def test_without_it_a_table_is_as_it_was():
    (table,) = tables(runs())
    rendered = render_table(table)
    assert "gap to last" not in rendered.head
    assert not [line for line in rendered.lines if "oracle" in line]
    (beside,) = tables(runs(), ALL)
    assert tuple(row for row in beside.rows if row.selection != "oracle") == table.rows


def test_nothing_that_is_found_depends_on_it():
    others = runs(method="TRIP")
    (table,) = tables(runs() + others)
    (beside,) = tables(runs() + others, ALL)
    assert finding(beside) == finding(table)
    assert [row.label for row in contestants(beside)] == [row.label for row in contestants(table)]
    assert not [row for row in contestants(beside) if row.selection == "oracle"]
    assert [row.selection for row in ranked(beside).rows].count("oracle") == 2
    assert matching_rows(beside, "TRIP") == matching_rows(table, "TRIP")


def test_equal_rounds_stay_one_row_above_their_oracle():
    same = [with_history("photo", 0, [50.0, 40.0, 40.0])]
    (table,) = tables(same, ALL)
    assert [row.selection for row in ranked(table).rows if row.is_trained] == ["both", "oracle"]


def test_a_run_whose_rounds_are_not_known_has_none():
    unknown = make_record(50.0, held_out="photo", seed=7)
    (table,) = tables([*runs(), unknown], ALL)
    assert {row.selection for row in table.rows} == {"", "last", "best"}


def test_source_validation_may_choose():
    record = with_history("photo", 0, [50.0, 60.0, 40.0], role="validation")
    record = type(record)(**{**{f: getattr(record, f) for f in record.__dataclass_fields__}, "held_out": ()})
    vars(record)["history"] = [{"round": 1.0, "validation": 70.0}]
    (table,) = tables([record], ALL)
    assert "oracle" not in {row.selection for row in table.rows}


def test_the_first_of_equal_rounds_counts():
    history = [{"round": 1, "test": 5.0}, {"round": 2}, {"round": 3, "test": 7.0}, {"round": 4, "test": 7.0}]
    assert oracle_round(history, "test")["round"] == 3
    assert oracle_round(history, "held_out") is oracle_round([], "test") is None
    assert differences({0: {"a": 3.0}, 1: {"a": 4.0}}, {0: {"a": 1.0, "b": 2.0}}) == {0: {"a": 2.0}, 1: {}}
