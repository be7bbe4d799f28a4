"""``accuracy.png`` and ``communication.png`` in the run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedvlp.callbacks.baseline import Baseline
from fedvlp.results.figures import accuracy_figure, communication_figure
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.utils.files import atomic_write

FIGURES = {"accuracy.png": accuracy_figure, "communication.png": communication_figure}


class Plots(FederationCallback):
    """Draws accuracy over rounds and against communication.

    Args:
        baseline: where the untrained baseline's accuracies are.
    """

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Draws both."""
        federation: RunView = trainer
        history = federation.run_state.history
        if not federation.is_global_zero or not history:
            return
        title = f"{type(pl_module).__name__}, {type(federation.data).__name__}\n{federation.data.protocol}"
        for name, draw in FIGURES.items():
            figure = draw(history, self.baseline.scores, title)
            with atomic_write(Path(federation.log_dir) / name) as temporary:
                figure.savefig(temporary, format="png")
