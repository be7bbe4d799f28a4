"""The audit of selection: every round is evaluated, and the table matches the runs."""

from pathlib import Path

import pytest

from experiments.options import parse
from experiments.oracle.run import METHODS, STEPS, runs_of, study_parser
from experiments.oracle.table import table
from tests.helpers.report_runs import write_run
from tests.helpers.study_runs import parsed

STYLES = ("ink", "photo")


def choice(tmp_path, seeds="0,1"):
    arguments = ["--held_out", ",".join(STYLES), "--seeds", seeds, "--output", str(tmp_path)]
    return parse(study_parser(None), arguments)


@pytest.mark.parametrize("config", METHODS.values())
def test_every_round_is_evaluated_and_every_method_has_the_same_steps(tmp_path, config):
    ((run, *_), *_) = runs_of(config, choice(tmp_path))
    arguments = [f"--config=methods/{run.config}", *run.setting.arguments, *run.overrides]
    run_config = parsed(arguments)
    assert run_config.trainer.evaluate_every == 1
    assert run_config.trainer.local.steps * (2 if config == "plan" else 1) == STEPS
    assert run_config.model.init_args.optimizer.class_path == "torch.optim.AdamW"
    assert Path(f"configs/methods/{config}.yaml").is_file()


def finish(run, values):
    """Write a run with these held-out accuracies to the folder where the study expects it."""
    made = write_run(run.job.folder.parent / "made", values, held_out=run.held_out, seed=run.seed, domains=STYLES)
    run.job.folder.mkdir(parents=True)
    made.rename(run.job.folder / "2026-01-31_12-00-00")


def test_the_table_has_the_gap_and_changes_of_rank(tmp_path):
    assert table(choice(tmp_path)) == "Not run yet."
    curves = {"promptfl": [50.0, 54.0, 53.0], "trip": [58.0, 40.0, 52.5], "adapt": [40.0, 41.0, 42.0]}
    for config, values in curves.items():
        for seed_runs in runs_of(config, choice(tmp_path)):
            for run in seed_runs:
                finish(run, [value + run.seed for value in values])
    lines = table(choice(tmp_path)).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][2:]
    expected = [["PromptFL", "53.5 ± 0.7", "54.5 ± 0.7", "54.5 ± 0.7", "+1.0 ± 0.0", "+1.0", "2"]]
    expected.append(["TRIP", "53.0 ± 0.7", "58.5 ± 0.7", "58.5 ± 0.7", "+5.5 ± 0.0", "+5.5", "2"])
    expected.append(["ADAPT", "42.5 ± 0.7", "42.5 ± 0.7", "42.5 ± 0.7", "+0.0 ± 0.0", "+0.0", "2"])
    assert rows == expected
    (summary_line,) = [line for line in lines if line.startswith("Mean gap")]
    assert summary_line == (
        "Mean gap of the methods: +2.2 points. The oracle changes the places of 2 of 3 methods: PromptFL, TRIP."
    )
    assert lines[-1].startswith("Not run yet: PromptFL + KL,")
