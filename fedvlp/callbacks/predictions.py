"""``predictions.safetensors`` and ``confusion.csv`` in the run folder: the predicted class of each test image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvlp.callbacks.baseline import Baseline
from fedvlp.core.predictions import Predictions
from fedvlp.results.predictions import CONFUSION_FILE, confusion_csv, write_predictions
from fedvlp.results.record import LAST_ROW, ZERO_SHOT_ROW
from fedvlp.results.rounds import is_accuracy
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.training.prediction import without_validation
from fedvlp.utils.files import write_text

CONFUSION_ROLES = ("test", "held_out")


class PredictionsFile(FederationCallback):
    """Writes the predictions of the last evaluations of zero-shot CLIP and of the method; it measures nothing itself.

    Args:
        baseline: measures zero-shot CLIP.
    """

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline
        self.last: Mapping[str, Predictions] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Forgets an earlier run."""
        self.last = {}

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Keeps the predictions of a round that was evaluated."""
        if any(map(is_accuracy, row)):
            self.last = federation.predictions

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Writes both files; a run that had ended before, and has no new round, keeps its files."""
        federation: RunView = trainer
        if not federation.is_global_zero or (federation.run_state.history and not self.last):
            return
        rows = {ZERO_SHOT_ROW: without_validation(self.baseline.predictions), LAST_ROW: without_validation(self.last)}
        if not any(rows.values()):
            return
        folder = Path(federation.log_dir)
        write_predictions(folder, rows)
        tested = {row: _tested(by_split) for row, by_split in rows.items()}
        if any(tested.values()):
            write_text(folder / CONFUSION_FILE, confusion_csv(tested, federation.data.class_names))


def _tested(by_split: Mapping[str, Predictions]) -> dict[str, Predictions]:
    """Returns the splits of images that train and choose nothing."""
    return {name: each for name, each in by_split.items() if name.split("/")[0] in CONFUSION_ROLES}
