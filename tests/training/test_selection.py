"""The metric that selects rounds and trials, from ``fedvlp fit`` to every command that reads the run."""

import shutil

import pytest

from fedvlp.commands.cli import main
from fedvlp.results import load_record
from fedvlp.runs.checkpoint import load_checkpoint, load_deployed
from fedvlp.testing.runs import DOMAINS, draw
from tests.helpers.assertions import assert_equal
from tests.helpers.runs import short_fit
from tests.helpers.sites import Deployment, method_config, run_of
from tests.helpers.stand_in import make_here

pytestmark = pytest.mark.usefixtures("home")
BALANCED = "--trainer.select=balanced_accuracy"
COLUMN = "validation_balanced_accuracy"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Draw 20 intact images of each domain, 8 of them like its 5 broken ones.

    Class means find all broken images, and training then prefers the larger class.
    """
    root = tmp_path_factory.mktemp("images")
    for domain, domain_name in enumerate(DOMAINS):
        for class_name, looks in {"intact": [0] * 12 + [1] * 8, "broken": [1] * 5}.items():
            folder = root / domain_name / class_name
            folder.mkdir(parents=True)
            for index, look in enumerate(looks):
                draw(domain, look, index + 100 * (class_name == "broken")).save(folder / f"{index}.png")
    return root


@pytest.fixture(scope="module")
def fit(images, tmp_path_factory):
    """Make a function that trains from class means and returns the run folder."""

    def fit(*options):
        folder = tmp_path_factory.mktemp("run")
        arguments = ["--config=linear_probe", *short_fit(images, folder), "--model.start=class_means", *options]
        assert main(["fit", *arguments]) == 0
        return run_of(folder / "runs")

    return fit


@pytest.fixture(scope="module")
def by_accuracy(fit):
    return fit()


@pytest.fixture(scope="module")
def by_balanced(fit):
    return fit(BALANCED)


def test_the_chosen_metric_selects_another_round(by_accuracy, by_balanced):
    runs = [load_record(folder) for folder in (by_accuracy, by_balanced)]
    assert list(runs[0].accuracy)[-1] == "best on source validation (2)"
    assert list(runs[1].accuracy)[-1] == "best on source validation (1) by balanced accuracy"
    for title in ("zero-shot CLIP", "class means", "last round (2)"):
        assert runs[0].accuracy[title] == runs[1].accuracy[title]
    first, second = runs[1].history
    assert first["validation"] < second["validation"]
    assert first[COLUMN] > second[COLUMN]
    for row, title in ((first, "best on source validation"), (second, "last round")):
        assert row[COLUMN] == runs[1].balance[title]["validation"]["balanced_accuracy"]
    checkpoint = load_checkpoint(by_balanced / "checkpoints" / "round-00001.safetensors")[0]
    assert_equal(load_deployed(by_balanced / "prompts_best.safetensors")[0], checkpoint.server.deployed)
    assert COLUMN not in runs[0].history[0]
    assert "select" not in runs[0].training


def test_a_resumed_run_follows_its_config(by_accuracy, by_balanced, tmp_path, capsys):
    run = shutil.copytree(by_balanced, tmp_path / "run")
    resume = ["fit", f"--config={run / 'config.yaml'}", f"--ckpt_path={run}", "--trainer.rounds=3"]
    assert main([*resume, "--trainer.select=accuracy"]) == 1
    assert "training.select" in capsys.readouterr().err
    assert main(resume) == 0
    assert "best on source validation (1) by balanced accuracy" in capsys.readouterr().out
    assert load_record(run).rounds == 3


def test_tables_state_the_metric_and_label_rows_if_it_differs(by_accuracy, by_balanced, tmp_path, capsys):
    def compare(*runs):
        assert main(["compare", *map(str, runs)]) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "best mean accuracy on source validation" in compare(by_accuracy)
    alone = compare(by_balanced)
    assert "best mean balanced accuracy on source validation" in alone
    assert "select=" not in alone
    mixed = compare(by_accuracy, by_balanced)
    assert "best mean accuracy or balanced accuracy on source validation" in mixed
    assert "linear_probe (select=accuracy) best" in mixed
    assert "linear_probe (select=balanced_accuracy) best" in mixed
    assert main(["report", str(by_balanced), "--output", str(tmp_path / "report.html")]) == 0
    assert "best mean balanced accuracy on source validation" in (tmp_path / "report.html").read_text()
    assert main(["push", str(by_balanced), "ann/figs", "--output", str(tmp_path / "pushed")]) == 0
    assert "best on source validation (1) by balanced accuracy" in (tmp_path / "pushed" / "README.md").read_text()
    assert main(["verify", str(by_balanced)]) == 0


def test_tune_chooses_by_the_same_metric(images, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fedvlp.tools.sweep.command.run_jobs", make_here)
    options = [option for option in short_fit(images, tmp_path) if "default_root_dir" not in option]
    axes = ["--models=linear_probe", "--held_out=photo", "--seeds=0", "--search=trainer.rounds=1,2"]
    options = [option.replace("=folders", "=data/folders") for option in options if "held_out" not in option]
    chosen = {}
    for metric in ("accuracy", "macro_f1"):
        output = f"--output={tmp_path / metric}"
        assert main(["tune", *axes, output, *options, "--model.start=class_means", f"--trainer.select={metric}"]) == 0
        row = capsys.readouterr().out.splitlines()[-1]
        chosen[metric] = row.partition("trainer.rounds=")[2][0]
    assert chosen == {"accuracy": "2", "macro_f1": "1"}
    assert " (macro F1) " in row


def test_early_stopping_can_monitor_the_metric(fit, capsys):
    stop = [
        "--trainer.callbacks=EarlyStopping",
        f"--trainer.callbacks.monitor={COLUMN}",
        "--trainer.callbacks.mode=max",
    ]
    run = fit(BALANCED, *stop, "--trainer.callbacks.patience=1", "--trainer.rounds=4")
    assert load_record(run).rounds == 2
    with pytest.raises(AssertionError):
        fit(*stop)
    assert f"monitors '{COLUMN}', which is no metric of a round" in capsys.readouterr().err


def test_sites_without_counts_by_class_refuse_before_training(image_root, tmp_path, capsys):
    config = method_config("promptfl", rounds=1, select="balanced_accuracy")
    silent = Deployment(tmp_path / "silent", image_root)
    assert silent.serve(config) == 1
    assert "The site 'ink' does not allow class_counts, which trainer.select needs" in capsys.readouterr().err
    assert not list(silent.folder.glob("deployed/*/*/"))
    open_sites = Deployment(tmp_path / "open", image_root, policy={"class_counts": True})
    assert open_sites.serve(config) == 0
    assert "best on source validation (1) by balanced accuracy" in load_record(open_sites.run()).accuracy
