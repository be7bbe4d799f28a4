"""Callbacks that write the run folder: checkpoints and prompts, metrics of rounds, predictions, and plots."""

import csv
import io
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from fedvlp.callbacks.measures import Baselines
from fedvlp.core.predictions import Predictions, name_accuracy
from fedvlp.core.roles import selection_column
from fedvlp.results.figures import FIGURE_FILE, accuracy_figure
from fedvlp.results.predictions import CONFUSION_FILE, confusions, write_predictions
from fedvlp.results.record import LAST_ROW
from fedvlp.results.rounds import best_round, is_accuracy
from fedvlp.runs.checkpoint import save_checkpoint, save_prompts
from fedvlp.runs.descriptions import describe_model
from fedvlp.runs.run_folder import checkpoint_file
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.training.prediction import reported_predictions
from fedvlp.utils.files import atomic_write, write_text


class Checkpoints(FederationCallback):
    """Writer of ``checkpoints/round-<n>.safetensors`` and the deployed ``prompts.safetensors`` after each round.

    ``prompts_best.safetensors`` is from the best round on *source* validation, by the metric ``trainer.select``.

    Args:
        keep: Number of checkpoints to keep. An older checkpoint is used if the newest is damaged.
    """

    def __init__(self, keep: int = 2) -> None:
        self.keep = keep

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Write the files. The checkpoint is last, because a run that resumes from it needs the others."""
        if not federation.is_global_zero:
            return
        _write_prompts(federation, "prompts.safetensors")
        run_state = federation.run_state
        if best_round(run_state.history, selection_column(federation.options.select)) is row:
            _write_prompts(federation, "prompts_best.safetensors")
        path = checkpoint_file(Path(federation.log_dir), row["round"])
        save_checkpoint(path, run_state, federation.description)
        # Round numbers are zero-padded, so sorting by name is sorting by round.
        for old in sorted(path.parent.glob("round-*.safetensors"))[: -self.keep]:
            old.unlink()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the prompts of a method without rounds."""
        if trainer.is_global_zero and not trainer.run_state.history:
            _write_prompts(trainer, "prompts.safetensors")


def _write_prompts(federation: RunView, name: str) -> None:
    run_state = federation.run_state
    personal = run_state.personal if federation.module.personal else {}
    path = Path(federation.log_dir) / name
    save_prompts(path, run_state.server.deployed, personal, describe_model(federation.module))


class MetricsFile(FederationCallback):
    """Writer of ``metrics.csv`` with one row per round, rewritten atomically."""

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Write the file."""
        if not federation.is_global_zero:
            return
        history = federation.run_state.history
        # Clients and metrics that first appear in a later round add columns to all rows.
        columns = dict.fromkeys(chain.from_iterable(history))
        file = io.StringIO(newline="")
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(history)
        write_text(Path(federation.log_dir) / "metrics.csv", file.getvalue())


class PredictionsFile(FederationCallback):
    """Writer of ``predictions.safetensors`` and ``confusion.csv``: the predicted class of each test image.

    Predictions come from the last evaluations of the baselines and the method; nothing is evaluated again.
    """

    def __init__(self, baselines: Baselines) -> None:
        self.baselines = baselines
        self.last: Mapping[str, Predictions] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Reset the state of an earlier run."""
        self.last = {}

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Store the predictions of an evaluated round."""
        if any(map(is_accuracy, row)):
            self.last = federation.predictions

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Write both files, unless a finished run was resumed without a new round."""
        federation: RunView = trainer
        if not federation.is_global_zero or (federation.run_state.history and not self.last):
            return
        # Validation images selected the round, so their predictions are not results.
        measured = {**self.baselines.predictions, LAST_ROW: self.last}
        rows = {title: reported_predictions(by_split, federation.data) for title, by_split in measured.items()}
        if not any(rows.values()):
            return
        folder = Path(federation.log_dir)
        write_predictions(folder, rows)
        frame = confusions(rows, federation.data.class_names)
        if not frame.empty:
            write_text(folder / CONFUSION_FILE, frame.to_csv(index=False, lineterminator="\n"))


class Plots(FederationCallback):
    """Writer of ``accuracy.png``, a plot of accuracy over rounds."""

    def __init__(self, baselines: Baselines) -> None:
        self.baselines = baselines

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Draw the plot."""
        federation: RunView = trainer
        history = federation.run_state.history
        if not federation.is_global_zero or not history:
            return
        title = f"{type(pl_module).__name__}, {type(federation.data).__name__}\n{federation.data.protocol}"
        score = name_accuracy("accuracy", federation.has_several_labels)
        figure = accuracy_figure(history, self.baselines.scores, title, score)
        with atomic_write(Path(federation.log_dir) / FIGURE_FILE) as temporary:
            figure.savefig(temporary, format="png")
