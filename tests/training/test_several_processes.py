"""Runs of two processes of which one is killed or stopped, and Ctrl-C while one waits for the other."""

from __future__ import annotations

import os
import signal
import time

import pytest

from fedvlp.training.callback import FederationCallback
from tests.helpers.assertions import assert_equal, run_metrics, run_tensors
from tests.helpers.forks import exit_code, ranks
from tests.helpers.toy_federation import PersonalBias, Points, federation, file_callbacks

FAULTS = {"killed": (1, signal.SIGKILL), "first killed": (0, signal.SIGKILL), "first stopped": (0, signal.SIGSTOP)}
SECONDS_OF_STOPPED = 8  # more than a process that works ever lets others wait, and less than anybody wants to wait


class Fault(FederationCallback):
    """Sends a signal to the process of one rank in the third round."""

    def __init__(self, rank, number):
        self.rank = rank
        self.number = number

    def on_client_start(self, federation, phase, client, steps):
        if federation.run_state.server.round == 2 and federation.fabric.global_rank == self.rank:
            print("now", flush=True)
            os.kill(os.getpid(), self.number)


def train(folder, *more, ckpt_path=None, **options):
    files = file_callbacks()
    callbacks = [*files.pop("callbacks"), *more]
    made = federation(folder, name="run", reset_optimizer=False, callbacks=callbacks, **files, **options)
    made.fit(PersonalBias(), Points(clients=5), ckpt_path)
    return made.run_state


def faulty(folder, rank, number, seconds):
    """Starts two processes of which one has a fault."""
    options = {"devices": 2, "strategy": "ddp", "collective_timeout": seconds}
    return ranks(lambda: train(folder, Fault(rank, number), **options), folder)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return train(tmp_path_factory.mktemp("unbroken"))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_other_names_a_rank_that_does_not_answer_and_the_run_goes_on(tmp_path, unbroken, fault, monkeypatch):
    rank, number = FAULTS[fault]
    monkeypatch.setattr("fedvlp.training.roll_call.SECONDS", 1.0)
    monkeypatch.setattr("fedvlp.training.roll_call.SECONDS_OF_HOST", 0.0)
    seconds = SECONDS_OF_STOPPED if number == signal.SIGSTOP else 3600
    with faulty(tmp_path, rank, number, seconds) as started:
        assert exit_code(started[1 - rank]) == 1
        assert started[rank].is_alive() == (number == signal.SIGSTOP)
    lines = [line for line in (tmp_path / f"{1 - rank}.txt").read_text().splitlines() if line.startswith("error")]
    assert len(lines) == 1
    assert f"No answer from rank {rank} of 2 processes" in lines[0]
    resumed = train(tmp_path, ckpt_path="last")
    assert len(list((tmp_path / "run").iterdir())) == 1
    assert_equal(run_tensors(resumed), run_tensors(unbroken))
    assert run_metrics(resumed) == run_metrics(unbroken)


def test_ctrl_c_is_heard_while_one_waits(tmp_path):
    with faulty(tmp_path, 1, signal.SIGSTOP, 3600) as started:
        while "now" not in (tmp_path / "1.txt").read_text():
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(started[0].pid, signal.SIGINT)
        assert exit_code(started[0]) == 1
    assert "KeyboardInterrupt" in (tmp_path / "0.txt").read_text()
