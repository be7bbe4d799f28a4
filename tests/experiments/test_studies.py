"""The studies under experiments/: the identity of runs, and all rows can be run."""

import re
from argparse import ArgumentError
from pathlib import Path

import pytest

from experiments.ablations.run import runs_of
from experiments.ablations.study import HERE, load_study, paper_numbers, study_names
from experiments.ablations.table import NOT_RUN, printed, table
from experiments.fair_comparison.methods import METHODS, ROUNDS, STEPS
from experiments.fair_comparison.run import content
from experiments.fair_comparison.run import main as fair_comparison
from experiments.options import parse, shared_parser
from experiments.runs import Setting, StudyRun, every_run, make_runs, seed_by_seed
from fedvlp.tools.sweep.plan import make_sweep, read_sweep
from fedvlp.utils.errors import UserError
from tests.helpers.stand_in import make_here
from tests.helpers.study_runs import finish, parsed

STUDIES = [load_study(name) for name in study_names()]


@pytest.fixture
def setting(image_root: Path, tmp_path: Path) -> Setting:
    """Use small images and one round."""
    more = (f"--data.cache_dir={tmp_path / 'cache'}", "--trainer.rounds=1", "--trainer.accelerator=cpu")
    return Setting(str(image_root), output=tmp_path / "runs", more=more)


def test_data_may_be_the_name_of_a_bundled_config():
    setting = Setting("icon_domains")
    assert setting.arguments[0] == "--config=data/icon_domains"
    assert setting.domains() == ["colour", "duotone", "emoji", "line", "pixel", "solid"]


def test_a_runs_name_depends_on_everything_but_its_output():
    run = StudyRun("trip", "ink", 0)
    assert run.name == StudyRun("trip", "ink", 0, Setting(output=Path("elsewhere"))).name
    others = [
        StudyRun("trip_lite", "ink", 0),
        StudyRun("trip", "photo", 0),
        StudyRun("trip", None, 0),
        StudyRun("trip", "ink", 1),
        StudyRun("trip", "ink", 0, Setting(clip="ViT-B-16")),
        StudyRun("trip", "ink", 0, Setting(data="images")),
        StudyRun("trip", "ink", 0, Setting(more=("--trainer.rounds=2",))),
        StudyRun("trip", "ink", 0, overrides=("--model.kl_weight=1",)),
    ]
    assert len({run.name, *(other.name for other in others)}) == 1 + len(others)


def test_comments_in_a_config_do_not_change_the_runs_name(tmp_path, monkeypatch):
    def name_with(text: str) -> str:
        path = tmp_path / "method.yaml"
        path.write_text(text, encoding="utf-8")
        monkeypatch.setattr("fedvlp.tools.sweep.plan.find_config", lambda name: str(path))
        return StudyRun("trip", "ink", 0).name

    first = name_with("model: {a: 1}  # one\n")
    assert name_with("model: {a: 1}\n") == first
    assert name_with("model: {a: 2}\n") != first


def test_runs_are_made_once_and_go_on(setting, capsys, monkeypatch):
    monkeypatch.setattr("experiments.runs.run_jobs", make_here)
    run = StudyRun("promptfl", "photo", 0, setting)
    wrong = StudyRun("promptfl", "nowhere", 0, setting)
    with pytest.raises(RuntimeError, match=r"1 of 2 runs failed: .*nowhere-0"):
        make_runs([run, wrong, run], 2)
    assert "exit code 1" in capsys.readouterr().err
    assert run.summary["rounds"] == 1
    assert run.accuracy("held_out") == run.summary["accuracy"]["last round (1)"]["held_out/photo"]
    (summary,) = setting.output.glob(f"{run.name}/*/summary.json")
    summary.unlink()
    assert not run.is_done
    make_runs([run], 1)
    assert list(setting.output.glob(f"{run.name}/*/summary.json")) == [summary], "it resumed in another folder"
    make_runs([run], 1)
    assert capsys.readouterr().err.count("1/1") == 1


def test_runs_are_grouped_by_seed_and_domain():
    runs = every_run("trip", ["--a=1"], Setting(), ["ink", None], [3, 5])
    made = [
        StudyRun("trip", *domain_and_seed, overrides=("--a=1",))
        for domain_and_seed in (("ink", 3), (None, 3), ("ink", 5), (None, 5))
    ]
    assert runs == [made[:2], made[2:]]
    assert seed_by_seed([runs, runs]) == [*made[:2], *made[:2], *made[2:], *made[2:]]


def test_options_of_a_study():
    choice = parse(shared_parser("", 4), ["--seeds", "1,2", "--held_out", "a,b", "--", "--trainer.accelerator=gpu"])
    assert choice.seeds == (1, 2)
    assert choice.held_out == ("a", "b")
    assert choice.setting.more == ("--trainer.rounds=4", "--trainer.evaluate_every=4", "--trainer.accelerator=gpu")
    assert parse(shared_parser(""), [], "none").held_out == (None,)
    assert parse(shared_parser(""), []).held_out == ("cartoon", "painting", "photo", "sketch")


def test_rows_of_a_study_are_different_runs():
    for study in STUDIES:
        setting = Setting(more=study.common)
        rows = [StudyRun(variant.config, "ink", 0, setting, variant.overrides) for variant in study.variants]
        assert len({run.name for run in rows}) == len(rows), study.name
        assert len({variant.label for variant in study.variants}) == len(rows), study.name


def test_every_printed_number_belongs_to_a_study():
    rows_with_paper_values = set()
    for study in STUDIES:
        for row in study.variants:
            rows_with_paper_values |= {(study.paper, study.table, label) for label in row.paper}
    assert rows_with_paper_values == set(paper_numbers())


def arguments_of(study, variant) -> tuple[str, ...]:
    """List a row's arguments, with all numbers replaced by 1 or 0.5, which the parser treats alike."""
    arguments = (f"--config=methods/{variant.config}", "--config=data/icon_domains", *study.common, *variant.overrides)
    whole = [re.sub(r"=[1-9]\d*$", "=1", argument) for argument in arguments]
    return tuple(re.sub(r"=\d*\.\d+$", "=0.5", argument) for argument in whole)


def arguments_of_all_rows() -> list[tuple[str, ...]]:
    """List the distinct arguments of all rows of all studies."""
    found = set()
    for study in STUDIES:
        found |= {arguments_of(study, row) for row in study.variants}
    return sorted(found)


@pytest.mark.parametrize("arguments", arguments_of_all_rows())
def test_every_row_is_accepted_by_the_command_line(arguments):
    parsed(arguments)


def test_wrong_options_of_a_row_are_rejected():
    for wrong in ("--model.key_init=none", "--model.expert=1"):
        with pytest.raises((ArgumentError, UserError)):
            parsed(["--config=methods/trip", wrong])


def test_the_users_arguments_follow_the_common_arguments():
    study = load_study("diprompt_table_3")
    choice = parse(shared_parser(""), ["--held_out", "ink", "--seeds", "0", "--", "--trainer.rounds=2"], study.held_out)
    ((run,),) = runs_of(study, study.variants[1], choice)
    order = [*study.common, "--trainer.rounds=2", "--model.without=[global_prompt]"]
    assert [argument for argument in run.arguments if argument in order] == order


def test_a_table_shows_our_results_next_to_the_papers(tmp_path):
    study = load_study("trip_table_6")
    choice = parse(shared_parser(""), ["--output", str(tmp_path), "--held_out", "ink", "--seeds", "0,1"])
    assert table(study, choice).startswith(f"Ours: {NOT_RUN}.")
    for (run,), score in zip(runs_of(study, study.variants[1], choice), (50.0, 52.0), strict=True):
        finish(run, score)
    lines = table(study, choice).splitlines()
    assert lines[2] == "| variant | ours | paper, PACS | paper, OfficeHome | paper, VLCS |"
    assert lines[4] == f"| orthogonal | {NOT_RUN} | 96.90 | 85.37 | 84.21 |"
    assert lines[5] == "| uniform | 51.0 ± 1.0 | 96.50 | 85.00 | 83.67 |"


def test_ambiguous_numbers_of_a_paper_show_both_values():
    study = load_study("plan_table_6")
    assert printed(study, study.variants[3], "PACS") == "96.47 or 96.46"


def test_the_readme_has_every_study_and_its_notes():
    text = (HERE / "README.md").read_text(encoding="utf-8")
    for study in STUDIES:
        assert f"<!-- {study.name} -->" in text
        assert study.title in text
        assert all(" ".join(note.split()) in " ".join(text.split()) for note in study.notes)


NOT_COMPARED = {
    "diprompt_labels": "DiPrompT with other domain labels",
    "dual_coop": "for images with several labels",
    "fed_mvp_released": "FedMVP with the settings of its released code",
    "kgcoop_released": "KgCoOp with the settings of its released code",
    "plan_released": "PLAN with the settings of its released code",
    "promptfl_released": "PromptFL with the settings of its released code",
    "trip_keys": "TRIP with another initialisation of its clusters",
    "trip_released": "TRIP with the settings of its released code",
}


def test_the_fair_comparison_has_every_method():
    configs = {path.stem for path in Path("configs/methods").glob("*.yaml")}
    assert {method.config for method in METHODS} == configs - NOT_COMPARED.keys()
    assert len({method.title for method in METHODS}) == len(METHODS)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.title)
def test_the_fair_comparison_gives_every_method_the_same_steps(method):
    choice = parse(shared_parser("", ROUNDS), ["--held_out", "photo+sketch", "--seeds", "0,1"])
    searched = content(method, choice)
    config = parsed([f"--config=methods/{method.config}", f"--config={searched['config']}", *searched["arguments"]])
    assert config.data.init_args.batch_size == 32
    phases = {"plan": 2, "fed_purel": 2, "fast_pt": 3}.get(method.config, 1)
    together = 2 if "centralised" in method.title else 1
    assert config.trainer.local.steps == STEPS * together // phases
    assert searched["held_out"] == ["photo+sketch"]
    assert searched["seeds"] == ([0, 1] if method.trains else [0])


def test_the_fair_comparison_evaluates_after_half_of_the_rounds():
    for rounds, every in ((1, 1), (5, 3), (10, 5)):
        choice = parse(shared_parser("", ROUNDS), ["--rounds", str(rounds), "--held_out", "ink", "--seeds", "0"])
        arguments = content(METHODS[3], choice)["arguments"]
        intervals = [argument for argument in arguments if argument.startswith("--trainer.evaluate_every=")]
        assert intervals[-1] == f"--trainer.evaluate_every={every}"
        assert f"--trainer.rounds={rounds}" in arguments


def test_the_fair_comparison_is_a_search_of_learning_rates(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("experiments.fair_comparison.run.run_tune", lambda words: calls.append(words) or 0)
    fair_comparison(["--methods", "kgcoop", "--held_out", "ink", "--output", str(tmp_path), "--workers", "3"])
    ((file, output, workers, search),) = calls
    assert (workers, search) == ("--workers=3", "--search=model.optimizer.lr=3e-05,0.0001,0.0003,0.001,0.003,0.01")
    assert output.startswith(f"--output={tmp_path / 'fair_comparison'}")
    plan = make_sweep(read_sweep(Path(file.removeprefix("--file="))))
    assert [method.label for method in plan.methods] == ["KgCoOp"]
