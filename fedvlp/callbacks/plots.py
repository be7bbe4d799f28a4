"""``accuracy.png`` and ``communication.png`` in the run folder."""

from __future__ import annotations

from typing import Any

from fedvlp.callbacks.baseline import Baseline
from fedvlp.report.figures import accuracy_figure, communication_figure
from fedvlp.training.callback import FederationCallback
from fedvlp.utils.files import atomic_write


class Plots(FederationCallback):
    """Draws accuracy over rounds and against communication.

    Args:
        baseline: where the untrained baseline's accuracies are.
    """

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Draws both."""
        history = trainer.run_state.history
        if not (trainer.is_global_zero and history):
            return
        title = f"{type(pl_module).__name__}, {type(trainer.data).__name__}\n{trainer.data.protocol}"
        for name, draw in {"accuracy.png": accuracy_figure, "communication.png": communication_figure}.items():
            with atomic_write(trainer.folder / name) as temporary:
                draw(history, self.baseline.scores, title).savefig(temporary, format="png")
