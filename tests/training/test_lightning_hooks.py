"""Lightning's callbacks in a federation: those that work are called in order, all others are refused at the start."""

from __future__ import annotations

import inspect

import lightning.pytorch.callbacks as known
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, LambdaCallback, ModelCheckpoint, Timer

from fedvlp.training.callback import FederationCallback
from fedvlp.training.lightning_hooks import CALLED, INSTEAD, REFUSED, check_callbacks, is_called
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, Points, federation, file_callbacks

WORK = {"Callback", "EarlyStopping", "LambdaCallback", "Timer"}
HOOKS = [name for name, value in vars(Callback).items() if inspect.isfunction(value) and not name.startswith("_")]


class Told(Callback):
    """Notes every hook of Lightning's that is called, and what it is called with."""

    def __init__(self):
        self.calls = []
        self.now = None

    def state_dict(self):
        self.calls.append("state_dict")
        return {"calls": len(self.calls)}

    def load_state_dict(self, state_dict):
        self.calls.append("load_state_dict")
        self.loaded = state_dict


def note(hook):
    parameters = list(inspect.signature(getattr(Callback, hook)).parameters)[1:]

    def called(self, *arguments):
        assert len(arguments) == len(parameters)
        assert arguments[0].lightning_module is arguments[1]
        self.calls.append(hook)
        self.now = arguments[0].current_epoch

    return called


for each in HOOKS:
    if each not in vars(Told):
        setattr(Told, each, note(each))
ROUND = ["on_train_epoch_start", "on_validation_start", "on_validation_epoch_start"]
ROUND += ["on_validation_epoch_end", "on_validation_end", "on_train_epoch_end", "state_dict"]
NOT_MEASURED = ["on_train_epoch_start", "on_train_epoch_end", "state_dict"]
BEGIN = ["on_fit_start", "on_train_start"]
END = ["on_train_end", "on_fit_end", "teardown"]


def test_hooks_are_called_in_the_order_of_the_table(tmp_path):
    first = Told()
    files = file_callbacks()["callbacks"]
    quiet = {"name": "run", "default_callbacks": False}
    federation(tmp_path, rounds=2, evaluate_every=2, callbacks=[first, *files], **quiet).fit(Linear(), Points())
    assert first.calls == ["setup", *BEGIN, *NOT_MEASURED, *ROUND, *END]
    second = Told()
    run = federation(tmp_path, rounds=3, callbacks=[second], **quiet)
    run.fit(Linear(), Points(), ckpt_path="last")
    assert second.calls == ["setup", "load_state_dict", *BEGIN, *ROUND, *END]
    assert second.loaded == {"calls": 3 + len(NOT_MEASURED) + len(ROUND)}
    assert [hook for hook in CALLED if hook != "on_exception"] == list(dict.fromkeys(second.calls))
    assert second.now == run.current_epoch == 3


def test_an_exception_is_told(tmp_path):
    told = Told()
    raising = LambdaCallback(on_train_epoch_end=lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        federation(tmp_path, callbacks=[told, raising], default_callbacks=False).fit(Linear(), Points())
    assert told.calls == ["setup", *BEGIN, *ROUND[:-1], "on_exception"]


def test_the_table_has_every_hook_of_lightning():
    others = [hook for hook in HOOKS if not is_called(hook) and hook not in INSTEAD]
    assert all("test" in hook or "predict" in hook for hook in others)
    assert set(CALLED) | set(INSTEAD) <= set(HOOKS) | set(vars(FederationCallback))
    assert all(is_called(hook) for hook in INSTEAD.values())
    assert not set(CALLED) & set(INSTEAD)


def test_every_callback_of_lightning_works_or_is_refused():
    assert set(known.__all__) == WORK | REFUSED.keys()


def bare(name):
    """A callback as its class makes it, without what its constructor asks for."""
    kind = getattr(known, name)
    return object.__new__(type(kind.__name__, (kind,), {}))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_callbacks_without_use_are_refused_with_what_there_is_instead(name):
    with pytest.raises(UserError, match=f"no use for {name}: ") as raised:
        check_callbacks([bare(name)], evaluate_every=1)
    assert REFUSED[name] in str(raised.value)


class StepEnd(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        """Waits for nothing."""


class StepAndRound(StepEnd):
    def on_round_end(self, federation, row):
        """Is called."""


class SecondStopping(EarlyStopping):
    def on_train_batch_end(self, *arguments):
        """Waits for nothing."""


@pytest.mark.parametrize(
    ("callbacks", "evaluate_every", "message"),
    [
        ([StepEnd()], 1, r"StepEnd would never .* calls on_train_batch_end \(use on_client_step\). It calls on_fit"),
        ([LambdaCallback(on_test_end=lambda *_: 1)], 1, "no federation calls on_test_end. It"),
        ([LambdaCallback(on_save_checkpoint=lambda *_: 1)], 1, r"on_save_checkpoint \(use state_dict\)"),
        ([EarlyStopping("held_out/ink", mode="max")], 1, "monitors held_out/ink, on which results are reported"),
        ([EarlyStopping("validation")], 1, "an accuracy, with mode 'min'. Pass mode='max'"),
        ([EarlyStopping("loss", check_on_train_epoch_end=True)], 2, "since evaluate_every is 2. Leave"),
        ([EarlyStopping("loss"), EarlyStopping("loss")], 1, "Several callbacks keep a state under the name EarlyS"),
        ([Timer("00:01:00:00")], 1, "Pass interval='epoch'"),
    ],
    ids=["step", "test", "checkpoint", "held out", "min", "old numbers", "twice", "timer"],
)
def test_what_would_wait_for_nothing_or_mislead_is_refused(callbacks, evaluate_every, message, tmp_path):
    run = federation(tmp_path, callbacks=callbacks, evaluate_every=evaluate_every)
    with pytest.raises(UserError, match=message):
        run.fit(Linear(), Points())
    assert not list(tmp_path.iterdir())


def test_hooks_that_never_fire_beside_others_are_named_once(caplog):
    stopping = EarlyStopping("validation", mode="max")
    timer = Timer("00:01:00:00", interval="epoch")
    check_callbacks([stopping, timer, FederationCallback(), Callback()], evaluate_every=1)
    assert not caplog.messages
    check_callbacks([StepAndRound(), SecondStopping("loss")], evaluate_every=1)
    assert [text.partition(": on_train")[0] for text in caplog.messages] == [
        "StepAndRound has hooks that no federation calls",
        "SecondStopping has hooks that no federation calls",
    ]


def test_a_metric_that_nobody_measures_ends_the_run_with_the_nearest(tmp_path):
    run = federation(tmp_path, callbacks=[EarlyStopping("validatoin", mode="max")])
    with pytest.raises(UserError, match=r"'validatoin', which no round measures. Did you mean 'validation'"):
        run.fit(Linear(), Points())


def test_callbacks_see_the_newest_numbers_and_are_told_what_is_missing(tmp_path):
    seen = []

    def look(trainer, module):
        seen.append((trainer.callback_metrics["validation"], trainer.callback_metrics["round"]))
        with pytest.raises(AttributeError, match=r"Federation has no 'global_step'. Of Lightning's .* max_epochs"):
            trainer.global_step  # noqa: B018

    looking = {"callbacks": [LambdaCallback(on_train_epoch_end=look)], "default_callbacks": False}
    run = federation(tmp_path, evaluate_every=2, **looking)
    run.evaluate = lambda *state: {"validation": 10.0 * run.current_epoch}
    with pytest.raises(KeyError):
        run.fit(Linear(), Points())  # the first round is not evaluated
    seen.clear()
    run = federation(tmp_path, **looking)
    run.evaluate = lambda *state: {"validation": 10.0 * run.current_epoch}
    run.fit(Linear(), Points())
    assert [(score.item(), number.item()) for score, number in seen] == [(0.0, 1), (10.0, 2), (20.0, 3)]
    assert all(isinstance(score, torch.Tensor) for score, _ in seen)
    assert run.logger is None
    assert (run.max_epochs, run.world_size, run.global_rank, run.datamodule) == (3, 1, 0, run.data)


def test_measuring_takes_configs_whose_callbacks_only_fit_refuses(tmp_path):
    run = federation(tmp_path, callbacks=[ModelCheckpoint()])
    assert "held_out" in run.test(Linear(), Points())
