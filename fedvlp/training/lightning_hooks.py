"""Lightning's hooks in a federation: which are called when, and which of its callbacks can do their work."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from lightning.pytorch.callbacks import Callback, EarlyStopping, Timer

from fedvlp.core.roles import ROLES
from fedvlp.core.state import RoundMetrics
from fedvlp.training.callback import FederationCallback
from fedvlp.training.dispatch import hook_of
from fedvlp.utils.errors import UserError, did_you_mean

log = logging.getLogger(__name__)

CALLED = {
    "setup": "the data are split and prepared; `stage` is `fit`",
    "load_state_dict": "after `setup`, in a run that goes on from a checkpoint with a state of this callback",
    "on_fit_start": "before the first round of this process, also where a run goes on",
    "on_train_start": "after `on_fit_start`",
    "on_train_epoch_start": "a round begins; its clients are not drawn yet (`on_round_start` has them)",
    "on_validation_start": "the clients of a round have trained, and its state is about to be evaluated",
    "on_validation_epoch_start": "after `on_validation_start`",
    "on_validation_epoch_end": "all splits were evaluated; `trainer.callback_metrics` has the round's numbers",
    "on_validation_end": "after `on_validation_epoch_end`",
    "on_train_epoch_end": "a round is over, evaluated or not, and nothing of it is written yet",
    "state_dict": "after `on_train_epoch_end`; the checkpoint of the round keeps it",
    "on_train_end": "after the last round, or where a callback stopped the run",
    "on_fit_end": "after `on_train_end`",
    "teardown": "last; the method holds the trained tensors, and `stage` is `fit`",
    "on_exception": "the run ends by an error or is interrupted, in place of the three hooks before this one",
}
"""Lightning's hooks that a federation calls, in their order, and when."""

INSTEAD = {
    "on_train_batch_start": "on_client_start",
    "on_train_batch_end": "on_client_step",
    "on_before_backward": "on_client_step",
    "on_after_backward": "on_client_step",
    "on_before_optimizer_step": "on_client_step",
    "on_before_zero_grad": "on_client_step",
    "on_validation_batch_start": "on_validation_start",
    "on_validation_batch_end": "on_validation_end",
    "on_sanity_check_start": "on_fit_start",
    "on_sanity_check_end": "on_fit_start",
    "on_save_checkpoint": "state_dict",
    "on_load_checkpoint": "load_state_dict",
}
"""What a callback can use in place of a hook that is never called; those of ``test`` and ``predict`` have nothing."""

OWN_FILES = (
    "a run writes its own checkpoints, without pickle: checkpoints/round-<n>.safetensors, from which --ckpt_path goes "
    "on, prompts.safetensors, and prompts_best.safetensors of the best round on source validation; "
    "--trainer.runtime.default_callbacks false writes none"
)
AVERAGED = "the server averages already; the method SWAD and --trainer.server.aggregation have other averages"
CHOSEN_BY_METHOD = "a method says itself what it trains"
REFUSED = {
    "Checkpoint": OWN_FILES,
    "ModelCheckpoint": OWN_FILES,
    "OnExceptionCheckpoint": OWN_FILES,
    "LearningRateMonitor": (
        "the learning rate changes from round to round alone, and its factor is logged as learning_rate_factor "
        "wherever there is a --trainer.local.schedule"
    ),
    "LearningRateFinder": "a rate is tried with --model.optimizer.lr, and several with `fedvlp sweep`",
    "BatchSizeFinder": "--data.batch_size sets it; a step that the memory does not hold is made in two parts",
    "GradientAccumulationScheduler": "--data.batch_size sets how many images a step sees",
    "DeviceStatsMonitor": "metrics.csv has the seconds of each round",
    "ThroughputMonitor": "metrics.csv has the seconds of each round",
    "ModelSummary": "`fedvlp cost` lists what a method trains and sends",
    "RichModelSummary": "`fedvlp cost` lists what a method trains and sends",
    "ProgressBar": "--trainer.enable_progress_bar shows the federation's own",
    "TQDMProgressBar": "--trainer.enable_progress_bar shows the federation's own",
    "RichProgressBar": "--trainer.enable_progress_bar shows the federation's own",
    "BasePredictionWriter": "`fedvlp predict` writes a CSV, without callbacks",
    "SpikeDetection": "--trainer.server.max_update_norm refuses updates that are too large",
    "BaseFinetuning": CHOSEN_BY_METHOD,
    "BackboneFinetuning": CHOSEN_BY_METHOD,
    "ModelPruning": CHOSEN_BY_METHOD,
    "StochasticWeightAveraging": AVERAGED,
    "WeightAveraging": AVERAGED,
    "EMAWeightAveraging": AVERAGED,
}
"""Lightning's callbacks that have nothing to do in a federation, with what there is instead."""


def check_callbacks(callbacks: Sequence[Any], evaluate_every: int) -> None:
    """Sees that every callback can do its work; warns of hooks that are never called.

    Args:
        callbacks: those of a federation.
        evaluate_every: rounds from one evaluation to the next.

    Raises:
        UserError: if one is of Lightning's that a federation refuses, has hooks of which none is ever called, or
            monitors what it must not, or two could not be told apart in a checkpoint.
    """
    for callback in callbacks:
        _check_kind(callback)
        _check_hooks(callback)
        if isinstance(callback, EarlyStopping):
            _check_early_stopping(callback, evaluate_every)
        if isinstance(callback, Timer) and callback._interval == "step":
            raise UserError(
                "Timer looks at the time after each step, where a federation has rounds. Pass interval='epoch'."
            )
    with_state = [each.state_key for each in callbacks if isinstance(each, Callback) and hook_of(each, "state_dict")]
    if twice := [key for key in dict.fromkeys(with_state) if with_state.count(key) > 1]:
        raise UserError(
            f"Several callbacks keep a state under the name {twice[0]}. Leave one out, or override state_key."
        )


def check_monitored(callbacks: Sequence[Any], measured: RoundMetrics) -> None:
    """Sees, once there are metrics, that those which ``EarlyStopping`` watches are among them.

    Raises:
        UserError: if one is not, with the nearest name.
    """
    for callback in callbacks:
        if isinstance(callback, EarlyStopping) and callback.strict and callback.monitor not in measured:
            near = (
                did_you_mean(callback.monitor, list(measured)) or "metrics.csv has what there is, such as validation."
            )
            raise UserError(f"EarlyStopping monitors {callback.monitor!r}, which no round measures. {near}")


def _check_kind(callback: Any) -> None:
    """Refuses Lightning's callbacks that have nothing to do here, and what was made of them."""
    for kind in type(callback).__mro__:
        if kind.__name__ in REFUSED and _is_of_lightning(kind):
            raise UserError(f"A federation has no use for {kind.__name__}: {REFUSED[kind.__name__]}. Leave it out.")


def _check_hooks(callback: Any) -> None:
    """Refuses a callback that would wait for nothing; warns of the hooks of another that are never called."""
    name = type(callback).__name__
    hooks = _overridden(callback)
    never = [hook for hook in hooks if not is_called(hook) and not _is_of_lightning(getattr(callback, hook))]
    if not never:
        return
    told = ", ".join(f"{hook} (use {INSTEAD[hook]})" if hook in INSTEAD else hook for hook in never)
    known = ", ".join([*(hook for hook in CALLED if hook.startswith("on_")), *FEDERATED])
    if len(never) < len(hooks):
        log.warning("%s has hooks that no federation calls: %s. It calls %s.", name, told, known)
        return
    raise UserError(f"{name} would never do anything: no federation calls {told}. It calls {known}.")


def _is_of_lightning(kind: Any) -> bool:
    """Whether a class or method is defined by Lightning."""
    return str(getattr(kind, "__module__", "")).split(".")[0] in ("lightning", "pytorch_lightning")


def is_called(hook: str) -> bool:
    """Whether a federation ever calls a hook of this name."""
    return hook in CALLED or hook in FEDERATED


FEDERATED = tuple(name for name in vars(FederationCallback) if name.startswith("on_"))
"""The hooks that only a federation has."""


def _overridden(callback: Any) -> list[str]:
    """Returns the names of what a callback has in place of hooks that do nothing, and of what looks like a hook."""
    names = dict.fromkeys(name for name in dir(callback) if name.startswith("on_") or name in CALLED)
    return [name for name in names if hook_of(callback, name) is not None]


def _check_early_stopping(callback: EarlyStopping, evaluate_every: int) -> None:
    role = callback.monitor.partition("/")[0]
    if role in ("test", "held_out"):
        raise UserError(
            f"EarlyStopping monitors {callback.monitor}, on which results are reported, so they would be chosen by "
            "what they are to tell. Monitor validation, the mean accuracy on the source domains."
        )
    if role in ROLES and callback.mode == "min":
        raise UserError(f"EarlyStopping monitors {callback.monitor}, an accuracy, with mode 'min'. Pass mode='max'.")
    if callback._check_on_train_epoch_end and evaluate_every > 1:
        raise UserError(
            f"EarlyStopping with check_on_train_epoch_end would look at old numbers, since evaluate_every is "
            f"{evaluate_every}. Leave check_on_train_epoch_end out."
        )
