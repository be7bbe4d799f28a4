"""``predictions.safetensors`` in the run folder: what each image on which nobody trained was taken for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvlp.callbacks.baseline import Baseline
from fedvlp.core.predictions import Predictions
from fedvlp.results.confusion import LAST_ROW, ZERO_SHOT_ROW
from fedvlp.results.predictions import write_predictions
from fedvlp.results.selection import is_accuracy
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.training.scores_file import without_validation


class PredictionsFile(FederationCallback):
    """Writes what the evaluations of zero-shot CLIP and of the last round have seen; it measures nothing itself.

    Args:
        baseline: where zero-shot CLIP's are.
    """

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline
        self.last: Mapping[str, Predictions] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Forgets an earlier run."""
        self.last = {}

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Keeps those of a round that was evaluated."""
        if any(map(is_accuracy, row)):
            self.last = federation.predictions

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Writes the file; a run that had ended before, and has no new round, keeps its own."""
        federation: RunView = trainer
        if not federation.is_global_zero or (federation.run_state.history and not self.last):
            return
        of_rows = {ZERO_SHOT_ROW: self.baseline.predictions, LAST_ROW: self.last}
        rows = {title: without_validation(by_split) for title, by_split in of_rows.items()}
        if any(rows.values()):
            write_predictions(Path(federation.log_dir), rows)
