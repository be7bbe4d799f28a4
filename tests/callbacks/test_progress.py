"""The events of a run."""

import pytest

from fedvlp.callbacks import Checkpoints, EventLog
from fedvlp.runs.events import read_events
from fedvlp.training.callback import FederationCallback
from tests.helpers.toy_federation import PersonalBias, Points, federation


class Unlucky(PersonalBias):
    """Method that fails once on client 2, and always on client 0 in the second phase of the second round."""

    times = 1

    def training_step(self, batch, batch_idx):
        where = (self.context.client.id, self.context.phase.name, self.context.round)
        if where == (2, "both", 0) and self.times:
            self.times -= 1
            raise OSError("a file is late")
        if where == (0, "weight", 1):
            raise RuntimeError("the disk is gone")
        return super().training_step(batch, batch_idx)


def logged(tmp_path, module, *others, rounds=2, ckpt_path=None, **options):
    """Train with an event log and return the events of the run."""
    checkpoints = Checkpoints()
    callbacks = [*others, checkpoints, EventLog()]
    made = federation(tmp_path, rounds=rounds, name="run", callbacks=callbacks, **options)
    made.fit(module, Points(), ckpt_path=ckpt_path)
    return list(read_events(made.folder))


def test_a_run_in_full(tmp_path):
    events = logged(tmp_path, Unlucky(), on_failure="retry")
    names = [event["event"] for event in events]
    both = ["client_trained"] * 3 + ["phase_ended"]
    last = ["client_left_out", *["client_trained"] * 2, "phase_ended"]
    expected = ["fit_started", "round_started", "client_retried", *both, *both, "round_ended", "checkpoint"]
    assert names == [*expected, "round_started", *both, *last, "round_ended", "checkpoint", "fit_ended"]
    by_name = {event["event"]: event for event in events}
    started = by_name["fit_started"]
    assert (started["after_round"], started["rounds"]) == (0, 2)
    assert started["clients"] == ["client0", "client1", "client2"]
    retried = by_name["client_retried"]
    retry = {"round": 1, "phase": "both", "client": 2, "name": "client2", "reason": "raised OSError: a file is late"}
    assert retried == {"time": retried["time"], "event": "client_retried", **retry}
    left_out = by_name["client_left_out"]
    assert (left_out["round"], left_out["phase"], left_out["client"]) == (2, "weight", 0)
    assert left_out["reason"].startswith("raised RuntimeError: the disk is gone")
    assert by_name["client_trained"]["num_examples"] == 16
    assert by_name["phase_ended"]["uploads"] == 2
    assert by_name["round_ended"].keys() >= {"seconds", "validation", "held_out"}
    assert by_name["checkpoint"]["file"] == "round-00002.safetensors"


def test_a_resumed_run_appends_events(tmp_path):
    logged(tmp_path, PersonalBias(), rounds=1)
    events = logged(tmp_path, PersonalBias(), rounds=3, ckpt_path="last")
    assert [event["after_round"] for event in events if event["event"] == "fit_started"] == [0, 1]
    assert [event["round"] for event in events if event["event"] == "round_started"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [(KeyboardInterrupt(), "KeyboardInterrupt", ""), (ZeroDivisionError("a\nb"), "ZeroDivisionError", "a")],
)
def test_an_exception_is_the_last_event(tmp_path, error, name, message):
    class Ends(FederationCallback):
        def on_train_batch_end(self, *_):
            raise error

    with pytest.raises(type(error)):
        logged(tmp_path, PersonalBias(), Ends())
    (run,) = tmp_path.glob("run/*")
    *_, last = read_events(run)
    assert (last["event"], last["error"], last["message"]) == ("fit_failed", name, message)
