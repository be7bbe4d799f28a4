"""A TensorBoard logger for run folders, and the callback that sends each round to loggers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import Logger
from lightning.pytorch import loggers

from fedvlp.callbacks.wandb_results import join_group, run_attributes, save_id, send_results
from fedvlp.runs.descriptions import describe_data
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.utils.errors import UserError


class TensorBoardLogger(loggers.TensorBoardLogger):
    """Lightning's TensorBoardLogger, writing to the run folder; needs pip install "fedvlp[tensorboard]".

    ``tensorboard --logdir runs`` shows all runs.

    Args:
        save_dir: Folder to write to; default: the run folder.
        name: Folder below ``save_dir``.
        version: Folder below ``name``; default: version_0, version_1 and so on, with a new one for each resumed run.
        prefix: Prefix of the names of all metrics.
    """

    def __init__(
        self, save_dir: str = "", name: str = "tensorboard", version: str | None = None, prefix: str = ""
    ) -> None:
        try:
            super().__init__(save_dir, name, version, default_hp_metric=False, prefix=prefix)
        except ModuleNotFoundError as error:
            raise UserError('TensorBoardLogger needs TensorBoard: pip install "fedvlp[tensorboard]".') from error

    def begin(self, folder: str) -> None:
        """Write to the run folder, which is unknown until the run starts, unless ``save_dir`` is set."""
        self._root_dir = self.save_dir or folder


class MetricsLoggers(FederationCallback):
    """Sender of each round to the loggers, at step = round. A logger that fails is disabled."""

    def __init__(self) -> None:
        self.failed: set[int] = set()
        self.attributes: dict[str, Any] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Send the description of the run."""
        federation: RunView = trainer
        if not federation.loggers:
            return
        data = describe_data(federation.module, federation.data)["data"]
        self.attributes = run_attributes(federation.description, data)
        folder = Path(federation.log_dir)
        description = {**federation.description, **self.attributes, "run_folder": federation.log_dir}
        for logger in federation.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.begin(federation.log_dir)
        self._for_each_logger(federation, lambda logger: join_group(logger, self.attributes, folder))
        self._for_each_logger(federation, lambda logger: logger.log_hyperparams(description))
        self._for_each_logger(federation, lambda logger: save_id(logger, folder))

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Send the metrics of the round."""
        numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
        self._for_each_logger(federation, lambda logger: logger.log_metrics(numbers, step=row["round"]))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Send the results of the run, and close the loggers."""
        federation: RunView = trainer
        folder = Path(federation.log_dir)
        self._for_each_logger(federation, lambda logger: send_results(logger, self.attributes, folder))
        self._for_each_logger(federation, lambda logger: logger.finalize("success"))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the loggers, so that they write all received metrics."""
        if self.attributes:  # otherwise they were not started
            self._for_each_logger(trainer, lambda logger: logger.finalize("failed"))

    def _for_each_logger(self, federation: RunView, action: Callable[[Logger], Any]) -> None:
        """Call ``action`` with each logger that has not failed; its errors do not stop training."""
        if not federation.is_global_zero:
            return
        for index, logger in enumerate(federation.loggers):
            if index in self.failed:
                continue
            try:
                action(logger)
            except NotImplementedError:  # a logger without hyperparameters is still usable
                continue
            except Exception as error:  # no error of a logging service may stop the run
                self.failed.add(index)
                name = type(logger).__name__
                federation.fabric.print(f"{name} failed and is disabled: {type(error).__name__}: {error}", flush=True)
