"""``confusion.csv`` in the run folder: which class each image on which nobody trained was taken for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvlp.callbacks.baseline import Baseline
from fedvlp.core.confusion import Confusion
from fedvlp.results.confusion import FILE, LAST_ROW, ZERO_SHOT_ROW, confusion_text
from fedvlp.results.selection import is_accuracy
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.utils.files import write_text

ROLES = ("test", "held_out")
"""Those of images on which nobody trains and which choose nothing."""


class Confusions(FederationCallback):
    """Writes what the evaluations of zero-shot CLIP and of the last round have counted; it measures nothing itself.

    Args:
        baseline: where zero-shot CLIP's counts are.
    """

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline
        self.last: Mapping[str, Confusion] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Forgets an earlier run."""
        self.last = {}

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Keeps the counts of a round that was evaluated."""
        if any(map(is_accuracy, row)):
            self.last = federation.confusions

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Writes the file; a run that had ended before, and has no new round, keeps its own."""
        federation: RunView = trainer
        if not federation.is_global_zero or (federation.run_state.history and not self.last):
            return
        counted = {ZERO_SHOT_ROW: self.baseline.confusions, LAST_ROW: self.last}
        rows = {title: _of_roles(by_split) for title, by_split in counted.items()}
        if any(rows.values()):
            write_text(Path(federation.log_dir) / FILE, confusion_text(rows, federation.data.class_names) + "\n")


def _of_roles(by_split: Mapping[str, Confusion]) -> dict[str, Confusion]:
    return {name: confusion for name, confusion in by_split.items() if name.split("/")[0] in ROLES}
