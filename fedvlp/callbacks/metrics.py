"""A row of metrics a round: in the run folder, and in the loggers that were given."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from fedvlp.callbacks.row_texts import RowTexts
from fedvlp.callbacks.wandb_summary import facts, join_group, send_summary
from fedvlp.training.callback import FederationCallback
from fedvlp.utils.files import write_text


class MetricsFile(FederationCallback):
    """Writes ``metrics.csv``: a row per round, the whole table in one step, so that it is never half a table.

    Each row is made into text only once.
    """

    def __init__(self) -> None:
        self.columns: list[str] = []
        self.lines = RowTexts(self._line)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins a table."""
        self.columns = []

    def on_round_end(self, federation: Any, row: dict[str, Any]) -> None:
        """Writes the file."""
        if not federation.is_global_zero:
            return
        history = federation.run_state.history
        columns = list(dict.fromkeys(name for past in (self.columns, row) for name in past))
        if columns != self.columns:
            self.columns = list(dict.fromkeys(name for past in history for name in past))
            self.lines = RowTexts(self._line)
        header = _csv_line(self.columns)
        write_text(federation.folder / "metrics.csv", "".join([header, *self.lines.of(history)]))

    def _line(self, row: dict[str, Any]) -> str:
        """Returns a row as CSV."""
        return _csv_line([row.get(name, "") for name in self.columns])


class MetricsLoggers(FederationCallback):
    """Sends each round to the loggers, at step = round. A logger that fails is left out from then on."""

    def __init__(self) -> None:
        self.failed: set[int] = set()
        self.about: dict[str, Any] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Sends the run's description."""
        if not trainer.loggers:
            return
        self.about = facts(trainer.description, trainer.data.describe())
        description = {**trainer.description, **self.about, "run_folder": str(trainer.folder)}
        self._each(trainer, lambda logger: join_group(logger, self.about))
        self._each(trainer, lambda logger: logger.log_hyperparams(description))

    def on_round_end(self, federation: Any, row: dict[str, Any]) -> None:
        """Sends the row."""
        numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
        self._each(federation, lambda logger: logger.log_metrics(numbers, step=row["round"]))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Sends what a table needs, and closes the loggers."""
        self._each(trainer, lambda logger: send_summary(logger, self.about, trainer.folder))
        self._each(trainer, lambda logger: logger.finalize("success"))

    def _each(self, federation: Any, action: Any) -> None:
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


def _csv_line(values: Sequence[Any]) -> str:
    """Returns one line of CSV."""
    line = io.StringIO(newline="")
    csv.writer(line).writerow(values)
    return line.getvalue()
