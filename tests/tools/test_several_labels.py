"""Runs on images with several labels report mean average precision wherever other runs report accuracy."""

import re
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest
import wandb

from fedvlp import load_runs
from fedvlp.callbacks.loggers import send_results
from fedvlp.commands.cli import main
from fedvlp.core.predictions import interval, several_label_scores, stack
from fedvlp.results import load_record
from fedvlp.results.figures import accuracy_figure
from fedvlp.results.rounds import divergence
from fedvlp.tools.compare.tables import add_intervals, tables
from fedvlp.tools.report.figures import draw_figures
from fedvlp.tools.report.page import labels
from tests.helpers.stand_in import make_here

SHORT = [
    *("--config=data/icon_scenes", "--data.num_classes=6", "--data.cache_dir=null"),
    *("--model.clip.name=fedvlp-tiny", "--trainer.local.steps=1", "--trainer.rounds=1", "--trainer.accelerator=cpu"),
]
FIT = ["fit", "--config=methods/promptfl", *SHORT]
TITLES = ["mAP", "macro AUROC", "macro F1", "micro F1"]


def printed(*words):
    """Run a command and return what it prints."""
    with redirect_stdout(StringIO()) as output:
        assert main([str(word) for word in words]) == 0
    return output.getvalue()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train once, and return the run folder and the printed text."""
    folder = tmp_path_factory.mktemp("runs")
    text = printed(*FIT, f"--trainer.default_root_dir={folder}")
    (summary,) = folder.rglob("summary.json")
    return summary.parent, text


@pytest.fixture(scope="module")
def scores(trained):
    """Read the scores of the held-out domains after the last round."""
    return load_record(trained[0]).metrics["last round"]["held_out"]


def cells(text, start):
    """Split the first line that starts with some words into its cells."""
    return re.split(" {2,}", next(line for line in text.splitlines() if line.startswith(start)))


def check_label_table(text, scores):
    """Check the table of scores by role, with intervals over images."""
    low, high = scores["intervals"]["macro_f1"]
    assert cells(text, "in %")[1:] == TITLES
    assert cells(text, "held_out  ")[3] == f"{scores['macro_f1']:.1f} [{low:.1f}, {high:.1f}]"
    assert "mAP: mean average precision" in text


def test_fit_prints_mean_average_precision_and_the_scores_of_labels(trained, scores):
    run, text = trained
    assert f"{scores['accuracy']:.2f}" in cells(text, "last round (1)")
    assert cells(text, "mAP in %")[-1] == "held-out mean*"
    check_label_table(text, scores)
    assert not re.search("accuracy|balanced|policy", text)
    assert not (run / "confusion.csv").exists()


def test_test_and_validate_print_the_same_scores(trained, scores):
    text = printed("test", "--ckpt_path", trained[0])
    assert f"held_out: {scores['accuracy']:.2f} % mAP" in text
    check_label_table(text, scores)
    assert re.search(r"validation: \d+\.\d\d % mAP", printed("validate", "--ckpt_path", trained[0]))


def test_status_names_the_score(trained, scores):
    assert cells(printed("status", trained[0]), "mAP ")[1].endswith(f"held-out {scores['accuracy']:.1f} %")


def test_compare_has_columns_for_labels_and_intervals(trained, scores):
    text = printed("compare", trained[0], "--row=last", "--intervals")
    low, high = scores["intervals"]["accuracy"]
    row = dict(zip(cells(text, "method"), cells(text, "promptfl  "), strict=True))
    assert row["pixel"] == f"{scores['accuracy']:.1f} [{low:.1f}, {high:.1f}]"
    assert [row[title] for title in TITLES[1:]] == [
        f"{scores[name]:.1f}" for name in ("class_auroc", "macro_f1", "micro_f1")
    ]
    assert "mAP in % on held-out domains" in text
    assert not re.search("accuracy|balanced|sensitivity", text)


def test_intervals_of_several_seeds_draw_their_predictions_together(trained):
    record = load_record(trained[0])
    first = record.predictions["last round"]["held_out/pixel"]
    second = replace(first, confidence=1 - first.confidence)
    other = replace(record, training={**record.training, "seed": 1})
    vars(other)["predictions"] = {"last round": {"held_out/pixel": second}}  # a cached property
    (table,) = tables([record, other], ["last"])
    cell = add_intervals(table).cell(("promptfl", "last"), "pixel")
    samples = several_label_scores(stack([first, second], ()), "held_out/pixel")[1]["accuracy"]
    assert [cell.low, cell.high] == interval(samples)
    alone = record.metrics["last round"]["held_out/pixel"]["intervals"]["accuracy"]
    assert [cell.low, cell.high] != alone


def test_the_report_says_map_and_lists_each_label(trained, tmp_path):
    record = load_record(trained[0])
    page = tmp_path / "report.html"
    printed("report", trained[0], "--output", page)
    text = re.sub("<pre.*?</pre>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert "mAP [95 % over groups]" in text
    assert "mean mAP on held-out domains" in text
    assert not re.search("accuracy|balanced", text, re.IGNORECASE)
    (table,) = tables([record])
    assert [picture.title for picture in draw_figures(table)][-1] == "mAP of each domain"
    by_label = record.metrics["last round"]["held_out/pixel"]["class_accuracy"]
    frame = labels(table).frame
    assert dict(zip(frame["label"], frame["promptfl"], strict=True)) == {
        name: f"{value:.1f}" for name, value in by_label.items()
    }


def test_loaded_runs_have_all_scores(trained, scores):
    frame = load_runs(trained[0]).query("row == 'last round' and role == 'held_out' and domain == ''")
    names = ["accuracy", "class_auroc", "macro_f1", "micro_f1"]
    assert frame[names].iloc[0].to_dict() == pytest.approx({name: scores[name] for name in names})
    assert frame["balanced_accuracy"].isna().all()


def test_tables_of_weights_and_biases_name_the_score(trained, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_ARTIFACT_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path))
    logged = {}
    run = SimpleNamespace(summary={}, id="x", log=logged.update, log_artifact=lambda artifact: None)
    send_results(SimpleNamespace(_wandb_init={}, experiment=run), {}, trained[0])
    assert isinstance(logged["domains"], wandb.Table)
    assert logged["domains"].columns == ["row", "role", "domain", "mAP"]
    assert logged["classes"].columns == ["row", "split", "class", "average precision"]


@pytest.mark.usefixtures("home")  # verify ignores the cache of a config
def test_verify_repeats_all_scores(trained):
    assert ": verified: PromptFL" in printed("verify", trained[0])


def test_tune_chooses_by_mean_average_precision(tmp_path, monkeypatch):
    monkeypatch.setattr("fedvlp.tools.sweep.command.run_jobs", make_here)
    axes = ["--models=promptfl", "--held_out=pixel", "--seeds=0", "--search=model.optimizer.lr=0.001,0.1"]
    text = printed("tune", *SHORT, *axes, f"--output={tmp_path}")
    assert "promptfl (best of 2)" in text
    assert "mAP in % on held-out domains" in text
    assert "accuracy" not in text


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--trainer.select=macro_f1", "select=macro_f1"),
        ("--trainer.clients.attack=LabelFlip", "LabelFlip"),
        ("--trainer.clients.attack=BackdoorPatch", "BackdoorPatch"),
    ],
)
def test_options_for_classes_are_refused(option, named, tmp_path, capsys):
    assert main([*FIT, option, f"--trainer.default_root_dir={tmp_path}"]) != 0
    assert f"Images with several labels do not support {named}. Remove the option." in capsys.readouterr().err


def test_training_that_falls_far_below_the_baseline_is_reported_without_chance():
    history = [{"client/a/loss": 1.0, "validation": 60.0}, {"client/a/loss": 9.0, "validation": 11.0}]
    assert divergence({"validation": 70.0}, history, None) == (
        "Training seems to have diverged: mAP is 11.00 % (70.00 % untrained), the loss 9 after 1. "
        "Lower the learning rate."
    )
    assert divergence({"validation": 12.0}, history, None) == ""


def test_the_figure_of_a_run_names_the_score():
    figure = accuracy_figure([{"round": 1, "validation": 9.0, "validation/a": 9.0}], {}, "PromptFL", "mAP")
    assert figure.axes[0].get_ylabel() == "mAP (%)"
