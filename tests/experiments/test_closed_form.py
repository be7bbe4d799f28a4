"""The study of closed forms: every row can be run, and source validation chooses the rates in its table."""

import json

import pytest
import torch
import torch.nn.functional as F

from experiments.closed_form import attempts
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


def test_every_attempt_is_measured_with_the_option_chosen_on_source_images(clip, monkeypatch):
    for name in ("ROUNDS", "STEPS", "FIT_STEPS"):
        monkeypatch.setattr(attempts, name, 1)
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(3, clip.embed_dim, generator=generator)

    def images(count):
        labels = torch.arange(count) % 3
        return F.normalize(
            centres[labels] + 3 * torch.randn(count, clip.embed_dim, generator=generator), dim=-1
        ), labels

    texts = F.normalize(torch.randn(3, clip.embed_dim, generator=generator), dim=-1)
    groups = [[images(24), images(15)], [images(30)], [images(45)]]
    task = attempts.Task(*groups, texts, ["dog", "owl", "red car"], clip, seed=0)
    found = attempts.results(task)
    assert found.keys() >= attempts.ATTEMPTS.keys() | {f"{title}; left-out sources" for title in attempts.LEFT_OUT}
    scores = {}
    for weight in attempts.TEXT_WEIGHTS:
        predict = attempts.linear(attempts.mixed_means(task, weight), 1.0)
        scores[f"{weight:g}"] = [attempts.accuracy(predict, images) for images in groups[1:]]
    row = found["class means + text"]
    assert [row["validation"], row["held_out"]] == scores[row["chosen"]]
    assert row["validation"] == max(validation for validation, _ in scores.values())


def test_an_untrained_module_is_unchanged_by_rounds_without_a_rate(clip):
    features = F.normalize(torch.randn(8, clip.embed_dim, generator=torch.Generator().manual_seed(1)), dim=-1)
    labels = torch.arange(8) % 2
    task = attempts.Task([(features, labels)] * 2, [], [], features[:2], ["dog", "owl"], clip, seed=3)
    module = attempts.LowRank(attempts.mixed_means(task), task.scale, 4, seed=0)
    before = module(features).detach()
    attempts.train(module, task, rate=0.0)
    torch.testing.assert_close(module(features), before)
    torch.testing.assert_close(before, attempts.linear(attempts.mixed_means(task), task.scale)(features))
