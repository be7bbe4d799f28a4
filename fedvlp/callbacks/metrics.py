"""A row of metrics a round: in the run folder, and in the loggers that were given."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import Logger

from fedvlp.callbacks.loggers import RunFolderLogger
from fedvlp.callbacks.wandb_results import join_group, run_attributes, send_results
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.utils.files import write_text


class MetricsFile(FederationCallback):
    """Writes ``metrics.csv``: a row per round, the whole table in one step, so that it is never half a table."""

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Writes the file."""
        if not federation.is_global_zero:
            return
        history = federation.run_state.history
        # A client that joins later, or a metric that is first logged later, adds a column to all rows.
        columns = dict.fromkeys(chain.from_iterable(history))
        file = io.StringIO(newline="")
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(history)
        write_text(Path(federation.log_dir) / "metrics.csv", file.getvalue())


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
        description = {**federation.description, **self.attributes, "run_folder": federation.log_dir}
        self._each(federation, lambda logger: _begin(logger, Path(federation.log_dir)))
        self._each(federation, lambda logger: join_group(logger, self.attributes, Path(federation.log_dir)))
        self._each(federation, lambda logger: logger.log_hyperparams(description))

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Sends the row."""
        numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
        self._each(federation, lambda logger: logger.log_metrics(numbers, step=row["round"]))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Sends what a table needs, and closes the loggers."""
        federation: RunView = trainer
        folder = Path(federation.log_dir)
        self._each(federation, lambda logger: send_results(logger, self.attributes, folder))
        self._each(federation, lambda logger: logger.finalize("success"))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Lets the loggers write what they have."""
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


def _begin(logger: Logger, folder: Path) -> None:
    """Tells a logger that writes into the run's folder where that is."""
    if isinstance(logger, RunFolderLogger):
        logger.begin(folder)
