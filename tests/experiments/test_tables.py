"""The tables of the studies, and the learning rates that they choose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import pytest

from experiments.fair_comparison import table as fair_table
from experiments.fair_comparison.methods import METHODS, RATES, ROUNDS
from experiments.fair_comparison.run import all_tried, chosen_rate, runs_of, tried
from experiments.options import parse, shared_parser
from experiments.quickstart import run as quickstart
from experiments.quickstart.setting import setting as quickstart_setting
from experiments.rates import add_rates, choose_rates, read_rates
from experiments.runs import Setting, StudyRun, adamw, every_run
from experiments.tables import describe, seed_means, spread, write_block
from tests.helpers.study_runs import finish


def test_cells_are_means_over_domains_with_the_spread_of_seeds(tmp_path):
    runs = every_run("trip", [], Setting(output=tmp_path), ["ink", "photo"], [0, 1])
    for run, score in zip(chain.from_iterable(runs), (50.0, 60.0, 54.0, 64.0), strict=True):
        finish(run, score)
    assert seed_means(runs, "held_out") == [55.0, 59.0]
    assert spread(seed_means(runs, "held_out")) == "57.0 ± 2.0"
    assert describe(runs) == (
        "styled_shapes, fedvlp-tiny; held out in turn: ink, photo; one client a domain; 3 rounds, last round; "
        "seeds 0, 1"
    )


def test_rates_are_chosen_on_source_validation(tmp_path, capsys):
    where = Setting(output=tmp_path)
    for rate, score in ((None, 44.0), (0.003, 60.0), (0.01, 40.0)):
        finish(StudyRun("trip", "ink", 0, where, ("--a=1", *adamw(rate))), score)
    chosen = choose_rates({"trip": ("--a=1",)}, (None, 0.003, 0.01), where, ["ink"], 1)
    assert chosen == {"trip": 0.003}
    assert "its own: 22.00, 0.003: 30.00, 0.01: 20.00" in capsys.readouterr().out
    path = tmp_path / "rates.json"
    assert read_rates(path) == {}
    add_rates(path, {"plan": 0.1})
    add_rates(path, chosen)
    assert read_rates(path) == {"plan": 0.1, "trip": 0.003}
    add_rates(path, {"plan": None})
    assert read_rates(path) == {"trip": 0.003}


@pytest.mark.usefixtures("home")
def test_table_of_the_quickstart(tmp_path):
    where = quickstart_setting(tmp_path)
    rows = [("zero_shot", None), ("trip", 0.001)]
    for row in rows:
        for number, of_seed in enumerate(quickstart.runs_of(row, where, [0, 1])):
            for run in of_seed:
                finish(run, 50.0 + 2 * number)
    lines = quickstart.table(rows, where, [0, 1], "last round").splitlines()
    assert lines[2] == "| zero-shot CLIP, one template | none |" + " 51.0 ± 1.0 |" * 5
    assert lines[3].startswith("| TRIP | AdamW 0.001 | 51.0 ± 1.0 |")


def test_a_readme_keeps_all_but_the_table(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("a\n<!-- one -->\nold\n<!-- /one -->\nb <!-- two --><!-- /two -->\n", encoding="utf-8")
    write_block(readme, "one", "| new |")
    write_block(readme, "two", "c")
    assert readme.read_text(encoding="utf-8") == (
        "a\n<!-- one -->\n| new |\n<!-- /one -->\nb <!-- two -->\nc\n<!-- /two -->\n"
    )
    with pytest.raises(ValueError, match="once each"):
        write_block(readme, "three", "")


def finish_with_curve(run: StudyRun, held_out: float, curve: Sequence[float]) -> None:
    """Ends a run that was measured after some of its rounds."""
    finish(run, held_out)
    (folder,) = (run.setting.output / run.name).iterdir()
    rows = [f"{number},{value}" for number, value in enumerate(curve, 1)]
    (folder / "metrics.csv").write_text("\n".join(["round,validation", *rows]) + "\n", encoding="utf-8")


def test_fair_comparison_chooses_each_domains_rate_on_its_own_source_validation(tmp_path):
    choice = parse(shared_parser("", ROUNDS), ["--output", str(tmp_path), "--held_out", "ink,photo", "--seeds", "0,1"])
    method = next(each for each in METHODS if each.config == "plan")
    best = {"ink": RATES[1], "photo": RATES[2]}
    for held_out, rate in best.items():
        for candidate, run in tried(method, choice, held_out).items():
            finish_with_curve(run, 60.0 if candidate == rate else 50.0, [20.0, 30.0])
        assert chosen_rate(tried(method, choice, held_out)) == rate
    for run in runs_of(method, choice)[1]:
        finish_with_curve(run, 64.0, [29.0, 30.0])
    text = fair_table.table(choice)
    assert "| PLAN | 60 templates | 0.001, 0.003 | 62.0 ± 2.0 | 62.0 ± 2.0 | 62.0 ± 2.0 |" in text
    assert "| +5.5, rising | 7 | 2 | 2 |" in text
    assert "Not run yet: zero-shot CLIP, " in text


def test_domains_that_are_held_out_together_have_a_column_each(tmp_path):
    given = ["--output", str(tmp_path), "--held_out", "ink+photo,line+solid", "--seeds", "0"]
    choice = parse(shared_parser("", ROUNDS), given)
    for run, accuracy in zip(all_tried(METHODS[0], choice), (60.0, 70.0), strict=True):
        finish(run, accuracy)
    assert "--data.held_out=[ink,photo]" in all_tried(METHODS[0], choice)[0].arguments
    text = fair_table.table(choice)
    assert "| ink | photo | line | solid | mean |" in text
    assert "| 60.0 | 60.0 | 70.0 | 70.0 | 65.0 |" in text


def test_fair_comparison_takes_the_smallest_of_equal_rates(tmp_path):
    choice = parse(shared_parser("", ROUNDS), ["--output", str(tmp_path), "--held_out", "ink", "--seeds", "0"])
    runs = tried(METHODS[-1], choice, "ink")
    for run in runs.values():
        finish(run, 50.0)
    assert chosen_rate(runs) == RATES[0]
