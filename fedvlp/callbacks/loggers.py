"""TensorBoard's logger, which writes into the run's folder, and what sends each round to loggers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import Logger
from lightning.pytorch import loggers

from fedvlp.callbacks.wandb_results import join_group, keep_id, run_attributes, send_results
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.utils.errors import UserError


class TensorBoardLogger(loggers.TensorBoardLogger):
    """Lightning's TensorBoardLogger, which writes into the run's folder; needs pip install "fedvlp[tensorboard]".

    ``tensorboard --logdir runs`` shows all runs.

    Args:
        save_dir: Folder to write to; the run's folder if not given.
        name: Folder below ``save_dir``.
        version: Folder below ``name``; version_0, version_1 and so on if not given, a new one where a run resumes.
        prefix: Put before the name of each metric.
    """

    def __init__(
        self, save_dir: str = "", name: str = "tensorboard", version: str | None = None, prefix: str = ""
    ) -> None:
        try:
            super().__init__(save_dir, name, version, default_hp_metric=False, prefix=prefix)
        except ModuleNotFoundError as error:
            raise UserError('TensorBoardLogger needs TensorBoard: pip install "fedvlp[tensorboard]".') from error

    def begin(self, folder: str) -> None:
        """Write into the run's folder, which is known only now, unless there is a ``save_dir``."""
        self._root_dir = self.save_dir or folder


class MetricsLoggers(FederationCallback):
    """Sends each round to the loggers, at step = round. A logger that fails is left out from then on."""

    def __init__(self) -> None:
        self.failed: set[int] = set()
        self.attributes: dict[str, Any] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Send the run's description."""
        federation: RunView = trainer
        if not federation.loggers:
            return
        self.attributes = run_attributes(federation.description, federation.data.describe())
        folder = Path(federation.log_dir)
        description = {**federation.description, **self.attributes, "run_folder": federation.log_dir}
        for logger in federation.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.begin(federation.log_dir)
        self._each(federation, lambda logger: join_group(logger, self.attributes, folder))
        self._each(federation, lambda logger: logger.log_hyperparams(description))
        self._each(federation, lambda logger: keep_id(logger, folder))

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Send the row."""
        numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
        self._each(federation, lambda logger: logger.log_metrics(numbers, step=row["round"]))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Send what a table needs, and close the loggers."""
        federation: RunView = trainer
        folder = Path(federation.log_dir)
        self._each(federation, lambda logger: send_results(logger, self.attributes, folder))
        self._each(federation, lambda logger: logger.finalize("success"))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the loggers, which write what they have."""
        if self.attributes:  # else they have not begun
            self._each(trainer, lambda logger: logger.finalize("failed"))

    def _each(self, federation: RunView, action: Callable[[Logger], Any]) -> None:
        """Do something with each logger that has not failed; training is worth more than a log."""
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
