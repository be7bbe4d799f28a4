"""Loggers under their short names: below the run's folder, anew where a run goes on, with one line for what lacks."""

from __future__ import annotations

import csv
import sys

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedvlp.callbacks import CSVLogger, MetricsLoggers, RunFolderLogger, TensorBoardLogger
from fedvlp.commands.lightning_cli import ParsingCLI
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, Points, federation, file_callbacks


def fitted(tmp_path, rounds, logger, **options):
    callbacks = [*file_callbacks()["callbacks"], MetricsLoggers()]
    options = {"name": "run", "logger": logger, "callbacks": callbacks, "default_callbacks": False, **options}
    run = federation(tmp_path / "runs", rounds=rounds, **options)
    run.fit(Linear(), Points(), ckpt_path="last")
    return run


def rows(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_csv_and_tensorboard_lie_in_the_run_folder(tmp_path):
    run = fitted(tmp_path, 2, [CSVLogger(), TensorBoardLogger(prefix="ours")])
    again = fitted(tmp_path, 3, [CSVLogger(), CSVLogger(str(tmp_path / "elsewhere"), name="", version="here")])
    assert again.folder == run.folder
    found = rows(run.folder / "csv" / "version_0" / "metrics.csv")
    assert [(row["step"], row["round"]) for row in found] == [("1", "1"), ("2", "2")]
    assert float(found[1]["held_out"]) == pytest.approx(run.run_state.history[1]["held_out"])
    described = yaml.safe_load((run.folder / "csv" / "version_0" / "hparams.yaml").read_text(encoding="utf-8"))
    assert described["method"] == "Linear"
    assert [row["step"] for row in rows(run.folder / "csv" / "version_1" / "metrics.csv")] == ["3"]
    assert [row["step"] for row in rows(tmp_path / "elsewhere" / "here" / "metrics.csv")] == ["3"]
    board = EventAccumulator(str(run.folder / "tensorboard" / "version_0")).Reload()
    assert [event.step for event in board.Scalars("ours-validation")] == [1, 2]
    assert again.loggers[0].version == 1


def test_what_was_logged_stays_where_a_run_breaks_off(tmp_path):
    class Breaks(RunFolderLogger):
        statuses = []  # noqa: RUF012

        def make_writer(self, folder):
            return self

        def log_metrics(self, metrics, step=None):
            raise KeyboardInterrupt

        def log_hyperparams(self, params):
            """Needs none."""

        def finalize(self, status):
            self.statuses.append(status)

    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path, 1, Breaks())
    assert Breaks.statuses == ["failed"]
    assert (Breaks().name, Breaks(version="own").version) == ("logs", "own")


def test_tensorboard_that_is_not_there_is_one_line(monkeypatch):
    for name in ("tensorboard", "tensorboardX", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("lightning.fabric.loggers.tensorboard._TENSORBOARD_AVAILABLE", False)
    monkeypatch.setattr("lightning.fabric.loggers.tensorboard._TENSORBOARDX_AVAILABLE", False)
    with pytest.raises(UserError, match=r'pip install "fedvlp\[tensorboard\]"'):
        TensorBoardLogger()


def test_short_names_and_paths_are_taken():
    full = "lightning.fabric.loggers.TensorBoardLogger"
    known = {"CSVLogger": "fedvlp.callbacks.CSVLogger", "TensorBoardLogger": "fedvlp.callbacks.TensorBoardLogger"}
    known |= {"WandbLogger": "lightning.pytorch.loggers.WandbLogger", full: full}
    words = [f"--trainer.logger+={name}" for name in known]
    given = ["--model=ZeroShotCLIP", "--data=StyledShapes", *words, "--trainer.logger.root_dir=logs"]
    command = ParsingCLI(run=False, args=given, save_config_callback=None)
    assert [each.class_path for each in command.config.trainer.logger] == list(known.values())
