"""What callbacks remember goes into the checkpoint: a resumed run stops where an unbroken one does."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, LambdaCallback

from fedvlp.core.state import CallbackStates, RunState, ServerState
from fedvlp.runs.checkpoint import load_checkpoint, save_checkpoint
from fedvlp.training.callback_states import restore, states_of
from fedvlp.training.distributed import GlooStrategy
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, Points, federation, file_callbacks

SCORES = [50.0, 62.5, 62.0, 70.0, 69.0, 68.0, 69.5, 90.0]
"""With a patience of 3 the run ends after the 7th."""


def fitted(tmp_path, name, rounds, callbacks, ckpt_path=None, every=1):
    """A federation that measured these scores, and its stopping."""
    files = file_callbacks()
    own = [*callbacks, *files["callbacks"]]
    run = federation(tmp_path, name=name, rounds=rounds, evaluate_every=every, default_callbacks=False, callbacks=own)
    run.evaluate = lambda *state: {"validation": SCORES[run.current_epoch]}
    run.fit(Linear(), Points(), ckpt_path=ckpt_path)
    return run


def stopping():
    return EarlyStopping("validation", mode="max", patience=3)


def test_a_run_stops_and_a_broken_one_stops_at_the_same_bytes(tmp_path):
    whole = stopping()
    unbroken = fitted(tmp_path, "whole", 8, [whole])
    assert len(unbroken.run_state.history) == 7
    assert (whole.wait_count, whole.stopped_epoch, whole.best_score.item()) == (3, 6, 70.0)
    expected = (unbroken.folder / "prompts.safetensors").read_bytes()
    fitted(tmp_path, "broken", 5, [stopping()])
    second = stopping()
    resumed = fitted(tmp_path, "broken", 8, [second], "last")
    assert (resumed.folder / "prompts.safetensors").read_bytes() == expected
    assert second.state_dict() == whole.state_dict()


def test_a_stopped_run_stays_stopped_until_nobody_stops_it(tmp_path, capsys, caplog):
    fitted(tmp_path, "run", 8, [stopping()])
    again = fitted(tmp_path, "run", 8, [stopping()], "last")
    assert len(again.run_state.history) == 7
    assert "stopped by EarlyStopping{'monitor': 'validation', 'mode': 'max'} after round 7" in capsys.readouterr().out
    free = fitted(tmp_path, "run", 8, [], "last")
    assert len(free.run_state.history) == 8
    assert "holds what EarlyStopping" in caplog.text


def test_a_run_that_is_stopped_ends_with_a_round_that_was_evaluated(tmp_path):
    def stop(trainer, module):
        trainer.should_stop = trainer.current_epoch >= 2

    def asking():
        return LambdaCallback(on_train_epoch_end=stop)

    run = fitted(tmp_path, "run", 8, [asking()], every=2)
    assert ["validation" in row for row in run.run_state.history] == [False, True, False, True]
    broken = LambdaCallback(on_train_epoch_start=lambda trainer, _: 1 // (3 - trainer.current_epoch))
    with pytest.raises(ZeroDivisionError):
        fitted(tmp_path, "broken", 8, [asking(), broken], every=2)
    for _ in range(2):  # of the same name, and it asks for nothing: the checkpoint knows that one had asked
        idle = LambdaCallback(on_train_start=lambda *_: None)
        assert len(fitted(tmp_path, "broken", 8, [idle], "last", every=2).run_state.history) == 4
    at_once = LambdaCallback(on_train_start=lambda trainer, module: setattr(trainer, "should_stop", True))
    assert not fitted(tmp_path, "none", 8, [at_once]).run_state.history


class Remembers(Callback):
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state_dict):
        self.state = state_dict["values"]


def test_numbers_texts_and_tensors_come_back_at_any_depth(tmp_path):
    values = {"a/b": [torch.tensor(0.1), {"c": torch.arange(3)}, None, 1.5], "text": "ß", "inf": float("inf")}
    states = states_of([Remembers({"values": values}), object()])
    path = tmp_path / "checkpoints" / "round-00001.safetensors"
    described = {"model": {"class_path": "x", "init_args": {}, "clip_fingerprint": ""}, "optimizer": None}
    described |= {"protocol": "", "split": "", "training": {}}
    save_checkpoint(path, RunState(ServerState.start({}), callbacks=states), described)
    found = load_checkpoint(path)[0].callbacks
    again = Remembers({})
    assert restore([again], found) == []
    assert torch.equal(again.state["a/b"][0], torch.tensor(0.1))
    assert torch.equal(again.state["a/b"][1]["c"], torch.arange(3))
    assert again.state["a/b"][2:] == [None, 1.5]
    assert (again.state["text"], again.state["inf"]) == ("ß", float("inf"))
    with pytest.raises(UserError, match=r"Remembers can't go on .* \(KeyError: 'values'\). Leave it out"):
        restore([again], CallbackStates({"Remembers": {"other": 1}}))


@pytest.mark.parametrize(
    "value", [{1, 2}, {3: "three"}, (1, 2), {"deep": [object()]}], ids=["set", "dict", "tuple", "object"]
)
def test_what_no_checkpoint_keeps_is_refused(value):
    with pytest.raises(UserError, match=r"Remembers.state_dict\(\) holds a (set|dict|tuple|object), which"):
        states_of([Remembers({"values": value})])


@pytest.mark.parametrize(
    ("own", "others", "any_of", "all_of"), [(True, [False], True, False), (True, [True], True, True)]
)
def test_processes_decide_together(own, others, any_of, all_of):
    processes = GlooStrategy(limit=1.0)
    processes.gather = lambda value: [value, *others]
    assert processes.reduce_boolean_decision(own, all=False) is any_of
    assert processes.reduce_boolean_decision(own) is all_of
    assert processes.reduce_boolean_decision(False, all=False) is others[0]
