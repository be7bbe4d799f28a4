"""The studies under experiments/: what makes a run the same run, and that every row of every study can be run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from experiments.ablations.run import runs_of
from experiments.ablations.study import HERE, load_study, paper_numbers, study_names
from experiments.ablations.table import NOT_RUN, printed, table
from experiments.options import parse, shared_parser
from experiments.quickstart import run as quickstart
from experiments.quickstart.rows import setting as quickstart_setting
from experiments.rates import add_rates, choose_rates, read_rates
from experiments.runs import Run, Setting, adamw, every_run, make_runs
from experiments.systems import table as systems_table
from experiments.systems.rows import METHODS, Row, all_rows
from experiments.tables import describe, seed_means, spread, write_block
from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.sweep import Job, Status
from fedvlp.sweep.job import Train
from fedvlp.utils.config_files import with_config_paths
from fedvlp.utils.errors import UserError

STUDIES = [load_study(name) for name in study_names()]
BY_NAME = pytest.mark.parametrize("study", STUDIES, ids=study_names())


@pytest.fixture
def setting(image_root: Path, tmp_path: Path) -> Setting:
    """Small images, one round."""
    more = (f"--data.cache_dir={tmp_path / 'cache'}", "--trainer.rounds=1", "--trainer.accelerator=cpu")
    return Setting(str(image_root), output=tmp_path / "runs", more=more)


def finish(run: Run, held_out: float, protocol: str = "held-out domain: ink; one client a domain") -> None:
    """Writes what a run that has ended leaves behind."""
    folder = run.setting.output / run.name / "2020-01-01"
    folder.mkdir(parents=True)
    scores = {"held_out": held_out, "test": held_out, "validation": held_out / 2}
    accuracy = {"zero-shot CLIP": {"held_out": 1.0}, "last round (3)": scores}
    summary = {"accuracy": accuracy, "protocol": protocol, "rounds": 3, "seconds": 2.0}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


def test_a_run_is_named_after_all_that_makes_it():
    run = Run("trip", "ink", 0)
    assert run.name == Run("trip", "ink", 0, Setting(output=Path("elsewhere"))).name
    others = [
        Run("trip_lite", "ink", 0),
        Run("trip", "photo", 0),
        Run("trip", None, 0),
        Run("trip", "ink", 1),
        Run("trip", "ink", 0, Setting(clip="ViT-B-16")),
        Run("trip", "ink", 0, Setting(data="images")),
        Run("trip", "ink", 0, Setting(more=("--trainer.rounds=2",))),
        Run("trip", "ink", 0, overrides=("--model.kl_weight=1",)),
    ]
    assert len({run.name, *(other.name for other in others)}) == 1 + len(others)


def test_comments_of_a_config_make_no_other_run(tmp_path, monkeypatch):
    def name_with(text: str) -> str:
        path = tmp_path / "method.yaml"
        path.write_text(text, encoding="utf-8")
        monkeypatch.setattr("fedvlp.sweep.plan.find_config", lambda name: str(path))
        return Run("trip", "ink", 0).name

    first = name_with("model: {a: 1}  # one\n")
    assert name_with("model: {a: 1}\n") == first
    assert name_with("model: {a: 2}\n") != first


def here(jobs: Sequence[Job], workers: int, train: Train, report: Callable[[Job, Status], None]) -> None:
    """Makes runs as a sweep does, but one after another in this process."""
    for job in jobs:
        code = train(job.arguments)
        report(job, Status("done") if job.is_done else Status("failed", error=f"exit code {code}"))


def test_runs_are_made_once_and_go_on(setting, capsys, monkeypatch):
    monkeypatch.setattr("experiments.runs.run_jobs", here)
    run, wrong = Run("promptfl", "photo", 0, setting), Run("promptfl", "nowhere", 0, setting)
    with pytest.raises(RuntimeError, match=r"1 of 2 runs failed: .*nowhere-0"):
        make_runs([run, wrong, run], 2)
    assert "exit code 1" in capsys.readouterr().err
    assert run.summary["rounds"] == 1
    assert run.accuracy("held_out") == run.summary["accuracy"]["last round (1)"]["held_out/photo"]
    (summary,) = setting.output.glob(f"{run.name}/*/summary.json")
    summary.unlink()
    assert not run.is_done
    make_runs([run], 1)
    assert list(setting.output.glob(f"{run.name}/*/summary.json")) == [summary], "it went on in its own folder"
    make_runs([run], 1)
    assert capsys.readouterr().err.count("1/1") == 1


def test_every_run_is_seeds_by_domains():
    runs = every_run("trip", ["--a=1"], Setting(), ["ink", None], [3, 5])
    assert [[(run.seed, run.held_out) for run in row] for row in runs] == [
        [(3, "ink"), (3, None)],
        [(5, "ink"), (5, None)],
    ]
    assert all(run.overrides == ("--a=1",) for row in runs for run in row)


@pytest.mark.usefixtures("home")
def test_options():
    choice = parse(shared_parser("", 4), ["--seeds", "1,2", "--held_out", "a,b", "--", "--trainer.accelerator=gpu"])
    assert choice.seeds == (1, 2)
    assert choice.held_out == ("a", "b")
    assert choice.setting.more == ("--trainer.rounds=4", "--trainer.evaluate_every=4", "--trainer.accelerator=gpu")
    assert parse(shared_parser(""), [], "none").held_out == (None,)
    assert parse(shared_parser(""), []).held_out == ("cartoon", "painting", "photo", "sketch")


def test_cells_are_means_over_domains_with_the_spread_of_seeds(tmp_path):
    runs = every_run("trip", [], Setting(output=tmp_path), ["ink", "photo"], [0, 1])
    for run, score in zip([run for row in runs for run in row], (50.0, 60.0, 54.0, 64.0), strict=True):
        finish(run, score)
    assert seed_means(runs, "held_out") == [55.0, 59.0]
    assert spread(seed_means(runs, "held_out")) == "57.0 ± 2.0"
    assert describe(runs) == (
        "styled_shapes, fedvlp-tiny; each of ink, photo held out in turn; one client a domain; 3 rounds, last round; "
        "seeds 0, 1"
    )


def test_rates_are_chosen_on_source_validation(tmp_path, capsys):
    where = Setting(output=tmp_path)
    for rate, score in ((None, 44.0), (0.003, 60.0), (0.01, 40.0)):
        finish(Run("trip", "ink", 0, where, ("--a=1", *adamw(rate))), score)
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


@BY_NAME
def test_no_two_rows_of_a_study_are_the_same_run(study):
    rows = [Run(variant.config, "ink", 0, Setting(more=study.common), variant.overrides) for variant in study.variants]
    assert len({run.name for run in rows}) == len(rows)
    assert len({variant.label for variant in study.variants}) == len(rows)


def test_every_number_of_the_papers_stands_in_a_study():
    wanted = {(study.paper, study.table, label) for study in STUDIES for row in study.variants for label in row.paper}
    assert wanted == set(paper_numbers())


class OnlyParses(FederationCLI):
    """The command line without what it builds."""

    def instantiate_classes(self) -> None:
        """Builds nothing."""


def arguments_of(study, variant) -> tuple[str, ...]:
    """Returns a row's arguments; numbers are all 1, as the parser takes one like the other."""
    given = (f"--config=methods/{variant.config}", "--config=data/styled_shapes", *study.common, *variant.overrides)
    return tuple(re.sub(r"=[\d.]+$", "=1", argument) for argument in given)


@pytest.mark.parametrize("given", sorted({arguments_of(study, row) for study in STUDIES for row in study.variants}))
def test_every_row_is_accepted_by_the_command_line(given):
    OnlyParses(run=False, args=with_config_paths(given), save_config_callback=None)


def test_a_row_that_the_command_line_refuses():
    for wrong in ("--model.key_init=none", "--model.expert=1"):
        with pytest.raises((SystemExit, UserError)):
            OnlyParses(run=False, args=with_config_paths(["--config=methods/trip", wrong]), save_config_callback=None)


def test_what_a_study_says_after_its_common_arguments():
    study = load_study("diprompt_table_3")
    choice = parse(shared_parser(""), ["--held_out", "ink", "--seeds", "0", "--", "--trainer.rounds=2"], study.held_out)
    ((run,),) = runs_of(study, study.variants[1], choice)
    order = [*study.common, "--trainer.rounds=2", "--model.without=[global_prompt]"]
    assert [argument for argument in run.arguments if argument in order] == order


def test_a_study_stands_beside_its_paper(tmp_path):
    study = load_study("trip_table_6")
    choice = parse(shared_parser(""), ["--output", str(tmp_path), "--held_out", "ink", "--seeds", "0,1"])
    assert table(study, choice).startswith(f"Ours: {NOT_RUN}.")
    for (run,), score in zip(runs_of(study, study.variants[1], choice), (50.0, 52.0), strict=True):
        finish(run, score)
    lines = table(study, choice).splitlines()
    assert lines[2] == "| variant | ours | paper, PACS | paper, OfficeHome | paper, VLCS |"
    assert lines[4] == f"| orthogonal | {NOT_RUN} | 96.90 | 85.37 | 84.21 |"
    assert lines[5] == "| uniform | 51.0 ± 1.0 | 96.50 | 85.00 | 83.67 |"


def test_numbers_that_a_paper_leaves_open():
    study = load_study("plan_table_6")
    assert printed(study, study.variants[3], "PACS") == "96.47 or 96.46"


def test_the_readme_has_every_study_and_its_notes():
    text = (HERE / "README.md").read_text(encoding="utf-8")
    for study in STUDIES:
        assert f"<!-- {study.name} -->" in text
        assert study.title in text
        assert all(" ".join(note.split()) in " ".join(text.split()) for note in study.notes)


def test_systems_have_every_method_first_with_its_own_optimizer():
    assert [row.config for row in all_rows() if row.rate is None] == [row.config for row in METHODS]
    assert Row("A", "trip", ("--b=1",), 0.001).arguments == ("--b=1", *adamw(0.001))
    assert adamw(0.001) == ("--model.optimizer=AdamW", "--model.optimizer.lr=0.001")
    assert adamw(None) == ()


def test_table_of_systems_leaves_out_what_is_not_there(tmp_path):
    choice = parse(shared_parser(""), ["--output", str(tmp_path), "--held_out", "ink,photo", "--seeds", "0,1"])
    runs, _ = every_run("plan", (), choice.setting, choice.held_out, choice.seeds)
    for run, score in zip(runs, (50.0, 60.0), strict=True):
        finish(run, score)
    text = systems_table.table(choice)
    assert "| PLAN | paper's | 50.0 | 60.0 | 55.0 | 27.5 | 1 | 2 |" in text
    assert "Not run yet: zero-shot CLIP (none), PromptFL (paper's)" in text
