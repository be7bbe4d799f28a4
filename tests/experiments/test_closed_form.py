"""The study of closed forms: every row can be run, and source validation chooses the rates in its table."""

import json

import pytest

from experiments.closed_form.run import METHODS, study_parser
from experiments.closed_form.table import table
from experiments.options import parse
from tests.helpers.study_runs import finish, parsed


@pytest.fixture
def choice(tmp_path):
    parser = study_parser(None)
    parser.add_argument("--balanced", action="store_true")
    return parse(parser, ["--held_out", "ink", "--output", str(tmp_path), "--balanced"])


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.config)
def test_every_row_is_accepted_by_the_command_line(choice, method):
    *_, run = method.runs(choice, "pixel")
    config = parsed([f"--config=methods/{run.config}", *run.setting.arguments, *run.overrides])
    assert config.trainer.rounds == (1 if "--trainer.rounds=1" in method.overrides else 10)
    if method.rates:
        assert config.model.init_args.optimizer.init_args.lr == method.rates[-1]


def test_the_table_shows_the_rate_with_the_best_source_validation(choice, tmp_path):
    (probe,) = (method for method in METHODS if method.config == "linear_probe")
    for run, validation, held_out in zip(probe.runs(choice, "ink"), (60, 80, 70, 50), (9, 7, 10, 8), strict=True):
        finish(run, held_out)
        (path,) = (tmp_path / run.name).glob("*/summary.json")
        summary = json.loads(path.read_text(encoding="utf-8"))
        summary["accuracy"]["last round (3)"]["validation"] = validation
        summary["metrics"] = {"last round": {"held_out": {"balanced_accuracy": held_out / 2}}}
        path.write_text(json.dumps(summary), encoding="utf-8")
    lines = table(choice).splitlines()
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == ["linear probe", "0.03", "80.0", "7.0", "3.5", "21", "2.0"]
    assert lines[-1].startswith("Not run yet: zero-shot CLIP, FedNCM")
