"""Runs of two processes of which one is killed, is stopped, or is told to end while it waits."""

from __future__ import annotations

import os
import signal

import pytest

from fedvlp.training.callback import FederationCallback
from tests.helpers.assertions import assert_equal, run_metrics, run_tensors
from tests.helpers.forks import exit_code, ranks
from tests.helpers.toy_federation import PersonalBias, Points, federation, file_callbacks

PROCESSES = {"devices": 2, "strategy": "ddp", "collective_timeout": 2, "reset_optimizer": False}
ONE = {"reset_optimizer": False}


class Signal(FederationCallback):
    """Sends a signal to one rank, or to its parent's child of that number, in the third round."""

    def __init__(self, rank, number):
        self.rank = rank
        self.number = number

    def on_client_start(self, federation, phase, client, steps):
        if federation.run_state.server.round == 2 and federation.fabric.global_rank == self.rank:
            os.kill(os.getpid(), self.number)


def train(folder, *more, ckpt_path=None, **options):
    files = file_callbacks()
    made = federation(folder, name="run", **{**files, "callbacks": [*files["callbacks"], *more]}, **options)
    made.fit(PersonalBias(), Points(clients=5), ckpt_path)
    return made.run_state


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return train(tmp_path_factory.mktemp("unbroken"), **ONE)


@pytest.mark.parametrize(
    ("rank", "number"), [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP), (0, signal.SIGSTOP)]
)
def test_others_name_a_rank_that_does_not_answer_and_the_run_goes_on(tmp_path, unbroken, rank, number):
    other = 1 - rank
    with ranks(lambda: train(tmp_path, Signal(rank, number), **PROCESSES), tmp_path) as started:
        assert exit_code(started[other]) == 1
        assert started[rank].is_alive() == (number == signal.SIGSTOP)
    lines = [line for line in (tmp_path / f"{other}.txt").read_text().splitlines() if line.startswith("error")]
    assert len(lines) == 1
    assert f"No answer from rank {rank} of 2 processes" in lines[0]
    resumed = train(tmp_path, ckpt_path="last", **ONE)
    assert len(list((tmp_path / "run").iterdir())) == 1
    assert_equal(run_tensors(resumed), run_tensors(unbroken))
    assert run_metrics(resumed) == run_metrics(unbroken)
