"""The robustness study: all runs can be parsed, and the table contains each."""

import csv

import pytest

from experiments.robustness.run import ATTACKS, RULES, Cell, chosen, runs_of, short_names, study_parser
from experiments.robustness.table import main, table
from tests.helpers.study_runs import finish, parsed

SMALL = ["--methods=promptfl", "--hostile=0,3", "--attacks=sign_flip,backdoor"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_run_can_be_parsed(rule, attack, tmp_path):
    choice, _ = chosen(study_parser(None), [f"--output={tmp_path}"])
    cell = Cell("promptfl", 3, attack, rule)
    ((run,),) = cell.runs(choice)
    assert set(cell.overrides) < set(run.arguments)
    config = parsed(["--config=methods/promptfl", "--config=data/icon_domains", *run.overrides])
    assert config.trainer.clients.attack.init_args.clients == 3
    assert (config.trainer.server.aggregation is None) == (rule == "mean")
    assert config.data.init_args.partition.init_args.num_clients == 10


def test_all_attacks_share_one_run_without_hostile_clients(tmp_path):
    choice, cells = chosen(study_parser(None), [*SMALL, f"--output={tmp_path}"])
    assert len(cells) == 2 * 2 * len(RULES)
    assert len(runs_of(cells, choice)) == len(RULES) * (1 + 2)


def test_every_attack_has_a_short_name():
    assert list(short_names().values()) == list(ATTACKS)
    assert not any(" " in name or "," in name for name in short_names())


def test_the_table_shows_accuracy_and_success(tmp_path, capsys):
    options = [*SMALL, f"--output={tmp_path}"]
    choice, cells = chosen(study_parser(None), options)
    finish_attacked(Cell("promptfl", 0, "backdoor", "mean"), choice, held_out=60.0, success=8.5)
    finish_attacked(Cell("promptfl", 3, "backdoor", "mean"), choice, held_out=40.0, success=77.0)
    main(options)
    printed = capsys.readouterr().out
    assert printed.strip() == table(choice, cells)
    assert "| promptfl | backdoor | mean | 45.0 | 30.0 |" in printed
    assert "| promptfl | backdoor, success | mean | 8.5 | 77.0 |" in printed
    assert printed.count("promptfl |") == 2  # the other attack and aggregators have no runs


def finish_attacked(cell, choice, held_out, success):
    """Write the files of a cell's run."""
    ((run,),) = cell.runs(choice)
    finish(run, held_out=held_out)
    (path,) = (run.setting.output / run.name).glob("*/summary.json")
    with (path.parent / "metrics.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["round", "attack_success/held_out"], [1, 7.0], [2, success]])
