"""Callbacks: progress, events, communication, privacy, checkpoints, metrics, tables and plots.

Imports core, runs, results and training; callbacks access the federation only as a ``RunView``. Lightning declares
``(trainer: Trainer, pl_module)`` for its own hooks, so these receive ``trainer`` as ``Any`` and assign it to a
``RunView``.
"""

from lightning.pytorch.callbacks import Callback

from fedvlp.callbacks.files import Checkpoints, MetricsFile, Plots, PredictionsFile
from fedvlp.callbacks.loggers import MetricsLoggers, TensorBoardLogger
from fedvlp.callbacks.measures import Baselines, Communication, Privacy
from fedvlp.callbacks.progress import EventLog, ProgressBar
from fedvlp.callbacks.summary import Summary
from fedvlp.training.callback import FederationCallback

__all__ = [
    "Baselines",
    "Checkpoints",
    "Communication",
    "EventLog",
    "FederationCallback",
    "MetricsFile",
    "MetricsLoggers",
    "Plots",
    "PredictionsFile",
    "Privacy",
    "ProgressBar",
    "Summary",
    "TensorBoardLogger",
    "default_callbacks",
]


def default_callbacks(progress_bar: bool = True) -> list[Callback]:
    """Make the default callbacks of a run; measuring callbacks precede writing ones."""
    baselines = Baselines()
    return [
        baselines,
        Communication(),
        Privacy(),
        ProgressBar(enabled=progress_bar),
        MetricsFile(),
        Checkpoints(),
        PredictionsFile(baselines),
        Summary(baselines),
        Plots(baselines),
        MetricsLoggers(),
        EventLog(),
    ]
