"""Call the hooks of callbacks, and reject Lightning's callbacks that do not work in a federation."""

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch.callbacks import Callback, EarlyStopping, Timer

from fedvlp.core.roles import REPORTED
from fedvlp.core.state import CallbackStates
from fedvlp.training.callback import RunView
from fedvlp.utils.errors import UserError

log = logging.getLogger(__name__)

HOOKS = (
    *("setup", "load_state_dict", "on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_end"),
    *("on_validation_start", "on_validation_epoch_start", "on_validation_epoch_end", "on_validation_end"),
    *("on_train_epoch_end", "state_dict", "on_train_end", "on_fit_end", "teardown", "on_exception"),
)
"""Lightning's hooks that a federation calls, in the order of their first calls; docs/lightning.md describes them."""

REFUSED = {
    "Checkpoint": "a run writes its own checkpoints, from which `--ckpt_path last` resumes",
    "LearningRateMonitor": "`metrics.csv` has the column `learning_rate_factor` with a `--trainer.local.schedule`",
    "LearningRateFinder": "`--model.optimizer.lr` sets the rate, and `fedvlp sweep` tries several",
    "BatchSizeFinder": "`--data.batch_size` sets it",
    "GradientAccumulationScheduler": "`--data.batch_size` sets the number of images per step",
    "DeviceStatsMonitor": "`metrics.csv` has the seconds of each round",
    "ThroughputMonitor": "`metrics.csv` has the seconds of each round",
    "ModelSummary": "`fedvlp cost` lists what a method trains and sends",
    "ProgressBar": "`--trainer.enable_progress_bar` shows the federation's progress bar",
    "BasePredictionWriter": "`fedvlp predict` writes a CSV, without callbacks",
    "SpikeDetection": "`--trainer.server.max_update_norm` rejects updates that are too large",
    "BaseFinetuning": "a method defines what it trains",
    "ModelPruning": "a method defines what it trains",
    "StochasticWeightAveraging": "the server averages; the method SWAD averages over rounds",
    "WeightAveraging": "the server averages; `--trainer.server.aggregation` has other averages",
}
"""Lightning's callbacks that a federation does not support, including subclasses, each with its replacement."""

ALL_HOOKS = [name for name, value in vars(Callback).items() if inspect.isfunction(value) and not name.startswith("_")]


class Hooks:
    """The hooks of callbacks. Lightning's get ``(trainer, pl_module, ...)``, the federation's ``(federation, ...)``.

    Callbacks may be added before the first call of a hook.

    Attributes:
        has_raised: Whether a hook has raised an error, which is then not the current client's fault.
        stopping: Callbacks that set ``should_stop`` of the federation, in this order.
    """

    def __init__(self, callbacks: Sequence[Any], federation: RunView | None = None) -> None:
        self.callbacks = callbacks
        self.federation = federation
        self.has_raised = False
        self.stopping: list[Any] = []
        self.methods: dict[str, list[tuple[Any, Callable[..., Any]]]] = {}

    def call(self, name: str, *arguments: Any) -> None:
        """Call one hook of every callback that has it."""
        if name not in self.methods:
            callbacks = [callback for callback in self.callbacks if hasattr(callback, name)]
            self.methods[name] = [(callback, getattr(callback, name)) for callback in callbacks]
        run = self.federation
        first = (run, run.module) if run is not None and name in HOOKS else (run,)
        for callback, method in self.methods[name]:
            was_stopping = run is not None and run.should_stop
            try:
                method(*first, *arguments)
            except Exception:
                self.has_raised = True
                raise
            if run is not None and run.should_stop and not was_stopping:
                self.stopping.append(callback)

    def states(self) -> CallbackStates:
        """Collect the states of callbacks for a checkpoint, and the names of callbacks that stopped the run."""
        states = {callback.state_key: callback.state_dict() for callback in self.callbacks}
        stopped_by = tuple(callback.state_key for callback in self.stopping)
        return CallbackStates({key: state for key, state in states.items() if state}, stopped_by)

    def restore(self, saved: CallbackStates) -> None:
        """Restore callbacks from a checkpoint; warn about states without a callback."""
        # By key, because the order of callbacks may have changed.
        by_key = {callback.state_key: callback for callback in self.callbacks}
        for key, state in saved.states.items():
            if key in by_key:
                by_key[key].load_state_dict(dict(state))
            else:
                log.warning("The checkpoint has a state of the callback %s, which this run does not use.", key)
        self.stopping = [by_key[key] for key in saved.stopped_by if key in by_key]


def check_callbacks(callbacks: Sequence[Callback], scores: Sequence[str] | None = None) -> None:
    """Raise UserError for unsupported callbacks, hooks that are never called, and wrong stopping criteria.

    ``scores`` are the names of the scores on source validation and other splits, if they are known.
    """
    for callback in callbacks:
        title = type(callback).__name__
        # By name, since some of these classes exist only in newer versions of Lightning.
        for kind in type(callback).__mro__:
            if kind.__name__ in REFUSED and kind.__module__.startswith(("lightning.", "pytorch_lightning.")):
                raise UserError(f"A federation does not support {title}: {REFUSED[kind.__name__]}. Remove it.")
        bound = {name: getattr(callback, name) for name in ALL_HOOKS}
        # The plain functions of a LambdaCallback also override Lightning's methods.
        overridden = [name for name in bound if getattr(bound[name], "__func__", None) is not getattr(Callback, name)]
        never = [name for name in overridden if name not in HOOKS]
        # Hooks of other commands are harmless if the callback also has hooks that are called.
        in_fit = [name for name in never if not name.startswith(("on_test", "on_predict", "on_sanity_check"))]
        if in_fit or len(never) == len(overridden) > 0:
            raise UserError(
                f"{title} overrides {', '.join(in_fit or never)}, which a federation never calls. Override "
                f"{', '.join(HOOKS[2:6])}, ... or a hook of fedvlp.callbacks.FederationCallback instead."
            )
        if isinstance(callback, EarlyStopping):
            _check_early_stopping(callback, scores)
        # Lightning's default reads the clock after each step, and processes take different numbers of steps.
        if isinstance(callback, Timer) and callback._interval == "step":
            raise UserError("Timer with interval='step' can't stop a round. Pass interval='epoch', which is a round.")


def _check_early_stopping(callback: EarlyStopping, scores: Sequence[str] | None) -> None:
    role = callback.monitor.partition("/")[0]
    kind = role.partition("_")[0]
    is_misspelt = scores is not None and kind == "validation" and callback.monitor not in scores
    if role in REPORTED:
        raise UserError(
            f"EarlyStopping monitors {callback.monitor}, on which results are reported. Selecting on it would bias the "
            "result. Monitor validation, the mean accuracy on the source domains."
        )
    if kind == "validation" and role != "validation_loss" and callback.mode == "min":  # Lightning's default
        raise UserError(f"EarlyStopping monitors {callback.monitor}, an accuracy, with mode 'min'. Pass mode='max'.")
    if callback.strict and (is_misspelt or kind not in ("validation", "client", "clients")):
        raise UserError(
            f"EarlyStopping monitors {callback.monitor!r}, which is no metric of a round. Monitor validation, "
            "validation_METRIC, validation/DOMAIN, client/CLIENT/loss (up to 100 clients) or clients/loss/mean (more)."
        )
