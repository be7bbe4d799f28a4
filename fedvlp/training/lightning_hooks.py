"""Calls the hooks of callbacks, and says which of Lightning's callbacks a federation has no use for.

The page ``docs/lightning.md`` has the same for readers: when each hook is called, and what replaces what is refused.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch.callbacks import Callback, EarlyStopping, Timer

from fedvlp.core.module import FederatedModule
from fedvlp.core.roles import REPORTED, ROLES
from fedvlp.core.state import CallbackStates
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.utils.errors import UserError

log = logging.getLogger(__name__)

REFUSED = {
    "Checkpoint": "a run writes its own checkpoints, from which --ckpt_path last resumes",
    "LearningRateMonitor": "metrics.csv has the column learning_rate_factor where there is a --trainer.local.schedule",
    "LearningRateFinder": "--model.optimizer.lr sets the rate, and `fedvlp sweep` tries several",
    "BatchSizeFinder": "--data.batch_size sets it",
    "GradientAccumulationScheduler": "--data.batch_size sets how many images a step sees",
    "DeviceStatsMonitor": "metrics.csv has the seconds of each round",
    "ThroughputMonitor": "metrics.csv has the seconds of each round",
    "ModelSummary": "`fedvlp cost` lists what a method trains and sends",
    "ProgressBar": "--trainer.enable_progress_bar shows the federation's own",
    "BasePredictionWriter": "`fedvlp predict` writes a CSV, without callbacks",
    "SpikeDetection": "--trainer.server.max_update_norm refuses updates that are too large",
    "BaseFinetuning": "a method defines what it trains",
    "ModelPruning": "a method defines what it trains",
    "StochasticWeightAveraging": "the server averages; the method SWAD averages over rounds",
    "WeightAveraging": "the server averages; --trainer.server.aggregation has other averages",
}
"""Lightning's callbacks, subclasses included, that have nothing to do in a federation, with the replacement."""


class Hooks:
    """Calls hooks: Lightning's as Lightning does, the federation's with the arguments that each of them names.

    ``Fabric.call`` of Lightning 2.6 does the same, but inspects each signature again at every call, so at every step.

    Args:
        callbacks: whose hooks are called, in this order; more may be added before the first call of a hook.
        federation: what callbacks see as ``federation``, and Lightning's as ``trainer``.
        module: the method.

    Attributes:
        has_raised: whether a hook has raised, which is not the fault of the client that trains.
        stopping: the callbacks that set ``should_stop`` of the federation, in that order.
    """

    def __init__(
        self, callbacks: Sequence[Any], federation: RunView | None = None, module: FederatedModule | None = None
    ) -> None:
        self.callbacks = callbacks
        self.federation = federation
        self.module = module
        self.has_raised = False
        self.stopping: list[Any] = []
        # By hook, each callback with its method and the arguments that this names; None if it takes all.
        self.methods: dict[str, list[tuple[Any, Callable[..., Any], frozenset[str] | None]]] = {}

    def call(self, name: str, **arguments: Any) -> None:
        """Calls one hook of every callback that has it."""
        if name not in self.methods:
            self.methods[name] = self._find(name)
        available = {"federation": self.federation, **arguments}
        for callback, method, names in self.methods[name]:
            was_stopping = self.federation is not None and self.federation.should_stop
            try:
                # Lightning's hooks take their arguments by place, as callbacks from elsewhere expect.
                if hasattr(Callback, name):
                    method(self.federation, self.module, *arguments.values())
                else:
                    method(**{each: available[each] for each in available if names is None or each in names})
            except Exception:
                # A client that trains would else be left out for it.
                self.has_raised = True
                raise
            if self.federation is not None and self.federation.should_stop and not was_stopping:
                self.stopping.append(callback)

    def _find(self, name: str) -> list[tuple[Any, Callable[..., Any], frozenset[str] | None]]:
        found = []
        for callback in self.callbacks:
            method = getattr(callback, name, None)
            # The base classes' own hooks do nothing, at every step of every client.
            if method is None or getattr(method, "__func__", None) is getattr(FederationCallback, name, method):
                continue
            parameters = inspect.signature(method).parameters
            takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
            found.append((callback, method, None if takes_all else frozenset(parameters)))
        return found

    def states(self) -> CallbackStates:
        """Returns what callbacks remember, for a checkpoint, and which of them asked the run to stop."""
        states = {callback.state_key: callback.state_dict() for callback in self.callbacks}
        stopped_by = tuple(callback.state_key for callback in self.stopping)
        return CallbackStates({key: state for key, state in states.items() if state}, stopped_by)

    def restore(self, saved: CallbackStates) -> None:
        """Gives callbacks back what a checkpoint kept of them; warns of those that are not there any more."""
        # By their keys, since the callbacks may stand in another order than before.
        by_key = {callback.state_key: callback for callback in self.callbacks}
        for key, state in saved.states.items():
            if key in by_key:
                by_key[key].load_state_dict(dict(state))
            else:
                log.warning("The checkpoint holds the state of %s, which is not among the callbacks now.", key)
        self.stopping = [by_key[key] for key in saved.stopped_by if key in by_key]


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Checks that every callback can do its work.

    Raises:
        UserError: if one is of Lightning's that a federation refuses, or would end the run never or by what reports
            results.
    """
    for callback in callbacks:
        # By name, since some of these classes exist in newer versions of Lightning alone.
        for kind in type(callback).__mro__:
            if kind.__name__ in REFUSED and kind.__module__.startswith(("lightning.", "pytorch_lightning.")):
                raise UserError(
                    f"A federation has no use for {type(callback).__name__}: {REFUSED[kind.__name__]}. Leave it out."
                )
        if isinstance(callback, EarlyStopping):
            _check_early_stopping(callback)
        # Lightning's default looks at the time after each step, where a federation has rounds.
        if isinstance(callback, Timer) and callback._interval == "step":
            raise UserError("Timer would never end the run. Pass interval='epoch', which is a round.")


def _check_early_stopping(callback: EarlyStopping) -> None:
    role = callback.monitor.partition("/")[0]
    if role in REPORTED:
        raise UserError(
            f"EarlyStopping monitors {callback.monitor}, on which results are reported, so they would be chosen by "
            "what they measure. Monitor validation, the mean accuracy on the source domains."
        )
    if role in ROLES and callback.mode == "min":  # Lightning's default
        raise UserError(f"EarlyStopping monitors {callback.monitor}, an accuracy, with mode 'min'. Pass mode='max'.")
