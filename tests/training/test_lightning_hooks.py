"""Lightning's callbacks: order of hooks, resumed states, and callbacks that are rejected."""

import inspect
import re
from pathlib import Path

import lightning.pytorch.callbacks as lightnings
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, LambdaCallback, ModelCheckpoint, Timer

from fedvlp.core.state import RunState, ServerState
from fedvlp.runs.checkpoint import load_checkpoint, save_checkpoint
from fedvlp.training.callback import FederationCallback
from fedvlp.training.lightning_hooks import HOOKS, REFUSED, Hooks, check_callbacks
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, Points, federation, file_callbacks

WORK = {"Callback", "EarlyStopping", "LambdaCallback", "Timer"}
SCORES = [50.0, 62.5, 62.0, 70.0, 69.0, 68.0, 69.5, 90.0]
"""With a patience of 3, a run ends after the 7th score."""


class Recorder(Callback):
    """Records every call of a Lightning hook."""

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


for each in set(HOOKS) - {"on_train_batch_end", *vars(Recorder)}:
    setattr(Recorder, each, note(each))
ROUND = ["on_train_epoch_start", "on_validation_start", "on_validation_epoch_start"]
ROUND += ["on_validation_epoch_end", "on_validation_end", "on_train_epoch_end", "state_dict"]
NOT_MEASURED = ["on_train_epoch_start", "on_train_epoch_end", "state_dict"]
BEGIN = ["on_fit_start", "on_train_start"]
END = ["on_train_end", "on_fit_end", "teardown"]


def test_hooks_are_called_in_the_documented_order(tmp_path):
    first = Recorder()
    files = file_callbacks()["callbacks"]
    federation(tmp_path, name="run", rounds=2, evaluate_every=2, callbacks=[first, *files]).fit(Linear(), Points())
    assert first.calls == ["setup", *BEGIN, *NOT_MEASURED, *ROUND, *END]
    second = Recorder()
    run = federation(tmp_path, name="run", rounds=3, callbacks=[second])
    run.fit(Linear(), Points(), ckpt_path="last")
    assert second.calls == ["setup", "load_state_dict", *BEGIN, *ROUND, *END]
    assert second.loaded == {"calls": 3 + len(NOT_MEASURED) + len(ROUND)}
    assert second.now == run.current_epoch == 3
    assert [*dict.fromkeys([*second.calls, "on_exception"])] == [name for name in HOOKS if name != "on_train_batch_end"]


def test_the_page_lists_all_hooks_and_rejected_callbacks():
    page = (Path(__file__).parents[2] / "docs" / "lightning.md").read_text(encoding="utf-8")
    hooks, refused = page.partition("| refused |")[::2]
    assert tuple(re.findall(r"^\| `(\w+)` \| .* \|$", hooks, re.MULTILINE)) == HOOKS
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", refused.partition("## Loggers")[0], re.MULTILINE)
    assert dict(rows) == REFUSED


def test_callbacks_are_notified_of_an_exception(tmp_path):
    recorder = Recorder()
    raising = LambdaCallback(on_train_epoch_end=lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        federation(tmp_path, callbacks=[recorder, raising]).fit(Linear(), Points())
    assert recorder.calls == ["setup", *BEGIN, *ROUND[:-1], "on_exception"]


def test_every_lightning_callback_works_or_is_rejected_with_a_replacement():
    for name in lightnings.__all__:
        kind = getattr(lightnings, name)
        callback = object.__new__(type(name, (kind,), {}))  # without the arguments of its constructor
        if name in WORK:
            continue
        with pytest.raises(UserError, match=f"does not support {name}: ") as raised:
            check_callbacks([callback])
        assert any(text in str(raised.value) for text in REFUSED.values())
    assert set(REFUSED) - {"WeightAveraging"} <= set(lightnings.__all__)  # exists since Lightning 2.6


def make_callback(name, *hooks):
    """Create a callback that overrides these hooks."""
    return type(name, (Callback,), dict.fromkeys(hooks, lambda *_: None))()


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (EarlyStopping("held_out/ink", mode="max"), "monitors held_out/ink, on which results are reported"),
        (EarlyStopping("val_loss"), "monitors 'val_loss', which is no metric of a round. Monitor validation, "),
        (
            EarlyStopping("validation/nowhere", mode="max"),
            "monitors 'validation/nowhere', which is no metric",
        ),
        (
            make_callback("Gradients", "on_fit_start", "on_after_backward"),
            "Gradients overrides on_after_backward, which a federation never calls",
        ),
        (make_callback("OnlyTests", "on_test_end"), "OnlyTests overrides on_test_end, which a federation never calls"),
        (LambdaCallback(on_before_backward=print), "LambdaCallback overrides on_before_backward"),
        (EarlyStopping("validation"), "an accuracy, with mode 'min'. Pass mode='max'"),
        (Timer("00:01:00:00"), "Pass interval='epoch'"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Callback) else "",
)
def test_misleading_or_ineffective_callbacks_are_rejected(callback, message, tmp_path):
    with pytest.raises(UserError, match=message):
        federation(tmp_path, callbacks=[callback], default_callbacks=True).fit(Linear(), Points())
    assert not list(tmp_path.iterdir())


def test_supported_callbacks_are_accepted():
    accepted = [EarlyStopping("validation", mode="max"), EarlyStopping("my_metric", strict=False)]
    accepted += [Timer("00:01:00:00", interval="epoch"), FederationCallback(), LambdaCallback(on_train_batch_end=print)]
    check_callbacks(accepted)


def test_callbacks_see_the_latest_metrics(tmp_path):
    seen = []

    def look(trainer, module):
        seen.append((trainer.callback_metrics["validation"], trainer.callback_metrics["round"]))

    run = federation(tmp_path, callbacks=[LambdaCallback(on_train_epoch_end=look)])
    run.evaluate = lambda *state: {"validation": 10.0 * run.current_epoch}
    run.fit(Linear(), Points())
    assert [(score.item(), number.item()) for score, number in seen] == [(0.0, 1), (10.0, 2), (20.0, 3)]
    assert all(isinstance(score, torch.Tensor) for score, _ in seen)
    assert (run.world_size, run.global_rank, run.loggers) == (1, 0, [])


def test_evaluation_accepts_callbacks_that_fit_rejects(tmp_path):
    run = federation(tmp_path, callbacks=[ModelCheckpoint()])
    assert "held_out" in run.test(Linear(), Points())


def fit(tmp_path, name, rounds, callbacks, ckpt_path=None, every=1):
    """Fit a federation with ``SCORES`` as its evaluations."""
    all_callbacks = [*callbacks, *file_callbacks()["callbacks"]]
    run = federation(tmp_path, name=name, rounds=rounds, evaluate_every=every, callbacks=all_callbacks)
    run.evaluate = lambda *state: {"validation": SCORES[run.current_epoch]}
    run.fit(Linear(), Points(), ckpt_path=ckpt_path)
    return run


def stopping():
    return EarlyStopping("validation", mode="max", patience=3)


def test_a_resumed_run_stops_like_an_uninterrupted_run(tmp_path):
    whole = stopping()
    unbroken = fit(tmp_path, "whole", 8, [whole])
    assert len(unbroken.run_state.history) == 7
    assert (whole.wait_count, whole.stopped_epoch, whole.best_score.item()) == (3, 6, 70.0)
    expected = (unbroken.folder / "prompts.safetensors").read_bytes()
    fit(tmp_path, "broken", 5, [stopping()])
    second = stopping()
    resumed = fit(tmp_path, "broken", 8, [second], "last")
    assert (resumed.folder / "prompts.safetensors").read_bytes() == expected
    assert second.state_dict() == whole.state_dict()


def test_a_stopped_run_stays_stopped_until_its_callback_is_removed(tmp_path, capsys, caplog):
    fit(tmp_path, "run", 8, [stopping()])
    again = fit(tmp_path, "run", 8, [stopping()], "last")
    assert len(again.run_state.history) == 7
    assert "stopped by EarlyStopping{'monitor': 'validation', 'mode': 'max'} after round 7" in capsys.readouterr().out
    free = fit(tmp_path, "run", 8, [], "last")
    assert len(free.run_state.history) == 8
    assert "has a state of the callback EarlyStopping" in caplog.text


def test_a_stopped_run_ends_with_an_evaluated_round(tmp_path):
    def stop(trainer, module):
        trainer.should_stop = trainer.current_epoch >= 2

    def make_stopping():
        return LambdaCallback(on_train_epoch_end=stop)

    run = fit(tmp_path, "run", 8, [make_stopping()], every=2)
    assert ["validation" in row for row in run.run_state.history] == [False, True, False, True]
    broken = LambdaCallback(on_train_epoch_start=lambda trainer, _: 1 // (3 - trainer.current_epoch))
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, "broken", 8, [make_stopping(), broken], every=2)
    for _ in range(2):  # has the same name and requests no stop, but the checkpoint contains the earlier request
        idle = LambdaCallback(on_train_start=lambda *_: None)
        assert len(fit(tmp_path, "broken", 8, [idle], "last", every=2).run_state.history) == 4
    immediate = LambdaCallback(on_train_start=lambda trainer, module: setattr(trainer, "should_stop", True))
    assert not fit(tmp_path, "none", 8, [immediate]).run_state.history


class Remembers(Callback):
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state_dict):
        self.state = state_dict["values"]


def test_numbers_strings_and_tensors_are_restored_at_any_depth(tmp_path):
    values = {"a/b": [torch.tensor(0.1), {"c": torch.arange(3)}, None, 1.5], "text": "ß", "inf": float("inf")}
    states = Hooks([Remembers({"values": values})]).states()
    path = tmp_path / "checkpoints" / "round-00001.safetensors"
    described = {"model": {"class_path": "x", "init_args": {}, "clip_fingerprint": ""}, "optimizer": None}
    described |= {"protocol": "", "split": "", "training": {}}
    save_checkpoint(path, RunState(ServerState.start({}), callbacks=states), described)
    again = Remembers({})
    hooks = Hooks([again])
    hooks.restore(load_checkpoint(path)[0].callbacks)
    assert hooks.stopping == []
    assert torch.equal(again.state["a/b"][0], torch.tensor(0.1))
    assert torch.equal(again.state["a/b"][1]["c"], torch.arange(3))
    assert again.state["a/b"][2:] == [None, 1.5]
    assert (again.state["text"], again.state["inf"]) == ("ß", float("inf"))
