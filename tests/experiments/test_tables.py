"""The tables of the studies."""

import json
from collections.abc import Sequence
from itertools import chain

import pytest

from experiments.fair_comparison import table as fair_table
from experiments.fair_comparison.methods import METHODS, RATES, Compared
from experiments.fair_comparison.run import folder_of
from experiments.options import Choice, parse
from experiments.runs import Setting, every_run
from experiments.tables import describe, seed_means, spread, write_block
from fedvlp.tools.tune.choice import TUNE_FILE, write_choices
from fedvlp.tools.tune.choice import Choice as RateChoice
from tests.helpers.report_runs import write_run
from tests.helpers.study_runs import finish

DOMAINS = ("ink", "photo", "line", "solid")


def test_cells_are_means_over_domains_with_the_deviation_over_seeds(tmp_path):
    runs = every_run("trip", [], Setting(output=tmp_path), ["ink", "photo"], [0, 1])
    for run, score in zip(chain.from_iterable(runs), (50.0, 60.0, 54.0, 64.0), strict=True):
        finish(run, score)
    assert seed_means(runs, "held_out") == [55.0, 59.0]
    assert spread(seed_means(runs, "held_out")) == "57.0 ± 2.0"
    assert describe(runs) == (
        "styled_shapes, fedvlp-tiny; held out in turn: ink, photo; one client per domain; 3 rounds, last round; "
        "seeds 0, 1"
    )


def test_only_the_table_of_a_readme_is_replaced(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("a\n<!-- one -->\nold\n<!-- /one -->\nb <!-- two --><!-- /two -->\n", encoding="utf-8")
    write_block(readme, "one", "| new |")
    write_block(readme, "two", "c")
    assert readme.read_text(encoding="utf-8") == (
        "a\n<!-- one -->\n| new |\n<!-- /one -->\nb <!-- two -->\nc\n<!-- /two -->\n"
    )
    with pytest.raises(ValueError, match="once each"):
        write_block(readme, "three", "")


def finish_search(method: Compared, choice: Choice, best: dict[str, int], accuracies: Sequence[float]) -> None:
    """Write a finished search of a method, with the best trial by held-out domain and an accuracy per seed."""
    folder = folder_of(method, choice)
    trials = [(f"--model.optimizer.lr={rate:g}",) for rate in RATES] if method.trains else [()]
    choices = []
    for held_out, trial in best.items():
        validation = [float(number == trial) for number in range(len(trials))]
        choices.append(RateChoice(method.title, held_out, trials, validation, validation))
    (folder / "chosen").mkdir(parents=True)
    write_choices(folder / TUNE_FILE, choices, [], 0)
    for chosen in choices:
        for seed, accuracy in enumerate(accuracies):
            names = chosen.held_out.split("+")
            run = write_run(folder / "chosen", [20.0, accuracy], "+".join(names), seed, domains=DOMAINS)
            summary = json.loads((run / "summary.json").read_text("utf-8"))
            last = next(row for title, row in summary["accuracy"].items() if title.startswith("last"))
            last |= {f"held_out/{name}": accuracy for name in names}
            chosen_trial = list(chosen.trials[chosen.chosen])
            tuning = {"of": "0", "search": [], "trials": len(chosen.trials), "chosen": chosen_trial}
            (run / "summary.json").write_text(json.dumps({**summary, "held_out": names, "tuning": tuning}), "utf-8")


def test_the_fair_comparison_shows_each_domains_choice(tmp_path):
    choice = parse(fair_table.make_parser(), ["--output", str(tmp_path), "--held_out", "ink,photo", "--seeds", "0,1"])
    method = next(each for each in METHODS if each.config == "plan")
    finish_search(method, choice, {"ink": 1, "photo": 2}, [60.0, 64.0])
    text = fair_table.table(choice)
    assert "| PLAN | 60 templates | 0.001, 0.003 | 62.0 ± 2.0 | 62.0 ± 2.0 | 62.0 ± 2.0 |" in text
    assert "| +42.0, rising | 100 | 2 |" in text
    assert "Not run yet: zero-shot CLIP, " in text


def test_domains_held_out_together_have_separate_columns(tmp_path):
    arguments = ["--output", str(tmp_path), "--held_out", "ink+photo,line+solid", "--seeds", "0"]
    choice = parse(fair_table.make_parser(), arguments)
    finish_search(METHODS[0], choice, {"ink+photo": 0, "line+solid": 0}, [60.0])
    text = fair_table.table(choice)
    assert "| ink | photo | line | solid | mean |" in text
    assert "| none | none | 60.0 | 60.0 | 60.0 | 60.0 | 60.0 |" in text
