"""Loggers of files under their short names, which write into the run's folder, and what sends each round to loggers."""

from __future__ import annotations

from abc import abstractmethod
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from lightning.fabric.loggers.logger import Logger
from lightning.pytorch import loggers

from fedvlp.callbacks.wandb_results import join_group, run_attributes, send_results
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.utils.errors import UserError


class RunFolderLogger(Logger):
    """A logger whose files are in the run's folder, which is known only once the run begins.

    Args:
        save_dir: Folder to write to; the run's folder if not given.
        name: Folder below ``save_dir``; one that is called after the kind of logger if not given.
        version: Folder below ``name``; version_0, version_1 and so on if not given, a new one where a run resumes.
        prefix: Put before the name of each metric.
    """

    usual_name: ClassVar[str] = "logs"

    def __init__(
        self, save_dir: str | None = None, name: str | None = None, version: str | None = None, prefix: str = ""
    ) -> None:
        super().__init__()
        self.save_dir = save_dir
        self.own_name = self.usual_name if name is None else name
        self.own_version = version
        self.prefix = prefix
        # Lightning's logger makes its folder at once, so it is made when the run's folder is known.
        self.writer: Any = None

    @abstractmethod
    def make_writer(self, folder: str) -> Logger:
        """Returns Lightning's logger for a folder."""

    def begin(self, folder: Path) -> None:
        """Opens the logger for the run of a folder."""
        self.writer = self.make_writer(self.save_dir or str(folder))

    @property
    def name(self) -> str | None:
        """The folder below ``save_dir``."""
        return self.own_name

    @property
    def version(self) -> int | str | None:
        """The folder below ``name``, or its number."""
        return self.own_version if self.writer is None else self.writer.version

    @property
    def experiment(self) -> Any:
        """What Lightning's logger writes with."""
        return self.writer.experiment

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Writes numbers."""
        self.writer.log_metrics(metrics, step)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Writes the run's description."""
        self.writer.log_hyperparams(params)

    def finalize(self, status: str) -> None:
        """Writes what is not yet written."""
        self.writer.finalize(status)


class CSVLogger(RunFolderLogger):
    """Lightning's CSVLogger: ``metrics.csv`` and ``hparams.yaml`` below ``csv`` in the run's folder."""

    usual_name = "csv"

    def make_writer(self, folder: str) -> Logger:
        """Returns Lightning's logger, which writes every row at once."""
        # By default a hundred rows wait in memory, which a run that is killed would lose.
        return loggers.CSVLogger(folder, self.own_name, self.own_version, self.prefix, flush_logs_every_n_steps=1)


class TensorBoardLogger(RunFolderLogger):
    """Lightning's TensorBoardLogger, which writes below ``tensorboard`` in the run's folder.

    ``tensorboard --logdir runs`` shows all runs. Needs the extra: pip install "fedvlp[tensorboard]".

    Raises:
        UserError: if TensorBoard is not installed.
    """

    usual_name = "tensorboard"

    def __init__(
        self, save_dir: str | None = None, name: str | None = None, version: str | None = None, prefix: str = ""
    ) -> None:
        super().__init__(save_dir, name, version, prefix)
        # Made once for nothing: a package that is missing is named before training, not after a round.
        try:
            self.make_writer(".")
        except ModuleNotFoundError as error:
            raise UserError('TensorBoardLogger needs TensorBoard: pip install "fedvlp[tensorboard]".') from error

    def make_writer(self, folder: str) -> Logger:
        """Returns Lightning's logger."""
        return loggers.TensorBoardLogger(
            folder, self.own_name, self.own_version, prefix=self.prefix, default_hp_metric=False
        )


class MetricsLoggers(FederationCallback):
    """Sends each round to the loggers, at step = round. A logger that fails is left out from then on."""

    def __init__(self) -> None:
        self.failed: set[int] = set()
        self.attributes: dict[str, Any] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Sends the run's description."""
        federation: RunView = trainer
        if not federation.loggers:
            return
        self.attributes = run_attributes(federation.description, federation.data.describe())
        folder = Path(federation.log_dir)
        description = {**federation.description, **self.attributes, "run_folder": federation.log_dir}
        self._each(federation, lambda logger: logger.begin(folder) if isinstance(logger, RunFolderLogger) else None)
        self._each(federation, lambda logger: join_group(logger, self.attributes, folder))
        self._each(federation, lambda logger: logger.log_hyperparams(description))

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Sends the row."""
        # Loggers take numbers alone.
        numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
        self._each(federation, lambda logger: logger.log_metrics(numbers, step=row["round"]))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Sends what a table needs, and closes the loggers."""
        federation: RunView = trainer
        folder = Path(federation.log_dir)
        self._each(federation, lambda logger: send_results(logger, self.attributes, folder))
        self._each(federation, lambda logger: logger.finalize("success"))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Closes the loggers, which write what they have."""
        if self.attributes:  # else they have not begun
            self._each(trainer, lambda logger: logger.finalize("failed"))

    def _each(self, federation: RunView, action: Callable[[Logger], Any]) -> None:
        """Does something with each logger that has not failed; training is worth more than a log."""
        if not federation.is_global_zero:
            return
        for index, logger in enumerate(federation.loggers):
            if index in self.failed:
                continue
            try:
                action(logger)
            except NotImplementedError:  # a logger without hyperparameters is a logger all the same
                continue
            except Exception as error:  # whatever a logging service raises must not end the run
                self.failed.add(index)
                name = type(logger).__name__
                federation.fabric.print(f"{name} failed and is left out: {type(error).__name__}: {error}", flush=True)
