"""Loggers by short name; TensorBoard writes to the run folder, or its absence is explained in one line."""

import sys

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedvlp.callbacks import MetricsLoggers, TensorBoardLogger
from fedvlp.commands.lightning_cli import ParsingCLI
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, Points, federation, file_callbacks


def fitted(tmp_path, rounds, logger, **options):
    callbacks = [*file_callbacks()["callbacks"], MetricsLoggers()]
    options = {"name": "run", "logger": logger, "callbacks": callbacks, **options}
    run = federation(tmp_path / "runs", rounds=rounds, **options)
    run.fit(Linear(), Points(), ckpt_path="last")
    return run


def test_tensorboard_writes_to_the_run_folder(tmp_path):
    run = fitted(tmp_path, 2, [TensorBoardLogger(prefix="ours")])
    again = fitted(tmp_path, 3, [TensorBoardLogger(), TensorBoardLogger(str(tmp_path / "elsewhere"), "", "here")])
    assert again.folder == run.folder
    folder = run.folder / "tensorboard"
    board = EventAccumulator(str(folder / "version_0")).Reload()
    assert [event.step for event in board.Scalars("ours-validation")] == [1, 2]
    assert board.Scalars("ours-held_out")[1].value == pytest.approx(run.run_state.history[1]["held_out"])
    described = yaml.safe_load((folder / "version_0" / "hparams.yaml").read_text(encoding="utf-8"))
    assert described["method"] == "Linear"
    for path in (folder / "version_1", tmp_path / "elsewhere" / "here"):
        assert [event.step for event in EventAccumulator(str(path)).Reload().Scalars("validation")] == [3]


def test_an_interrupted_run_keeps_its_logs(tmp_path):
    class Breaks(TensorBoardLogger):
        statuses = []  # noqa: RUF012

        def log_metrics(self, metrics, step=None):
            raise KeyboardInterrupt

        def finalize(self, status):
            self.statuses.append(status)

    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path, 1, Breaks())
    assert Breaks.statuses == ["failed"]


def test_missing_tensorboard_is_explained_in_one_line(monkeypatch):
    for name in ("tensorboard", "tensorboardX", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("lightning.fabric.loggers.tensorboard._TENSORBOARD_AVAILABLE", False)
    monkeypatch.setattr("lightning.fabric.loggers.tensorboard._TENSORBOARDX_AVAILABLE", False)
    with pytest.raises(UserError, match=r'pip install "fedvlp\[tensorboard\]"'):
        TensorBoardLogger()


def test_short_names_and_paths_are_accepted():
    full = "lightning.pytorch.loggers.CSVLogger"
    classes = {"TensorBoardLogger": "fedvlp.callbacks.TensorBoardLogger"}
    classes |= {"WandbLogger": "lightning.pytorch.loggers.WandbLogger", full: full}
    words = [f"--trainer.logger+={name}" for name in classes]
    arguments = ["--model=ZeroShotCLIP", "--data=IconDomains", *words, "--trainer.logger.save_dir=logs"]
    command = ParsingCLI(run=False, args=arguments, save_config_callback=None)
    assert [each.class_path for each in command.config.trainer.logger] == list(classes.values())
