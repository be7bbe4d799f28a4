"""``accuracy.png`` and ``communication.png`` in the run folder."""

from __future__ import annotations

import os
from typing import Any

from fedvlp.callbacks.baseline import Baseline
from fedvlp.callbacks.hooks import FederationCallback
from fedvlp.report.figures import accuracy_figure, communication_figure


class Plots(FederationCallback):
    """Draws accuracy over rounds and against communication.

    Args:
        baseline: where the untrained baseline's accuracies are.
    """

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Draws both."""
        history = trainer.progress.history
        if not (trainer.is_global_zero and history):
            return
        title = f"{type(pl_module).__name__}, {type(trainer.data).__name__}\n{trainer.data.protocol}"
        for name, draw in {"accuracy.png": accuracy_figure, "communication.png": communication_figure}.items():
            temporary = trainer.folder / f".{name}.{os.getpid()}.tmp"
            draw(history, self.baseline.scores, title).savefig(temporary, format="png")
            os.replace(temporary, trainer.folder / name)
