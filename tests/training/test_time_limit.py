"""The limit on a client's seconds; tests let the timer's signal come by themselves, so that no clock is needed."""

from __future__ import annotations

import csv
import signal
import threading

import pytest
import torch

from fedvlp.training.failures import ClientError
from fedvlp.training.time_limit import AGAIN, time_limit
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, Points, federation, file_callbacks


@pytest.fixture
def timers(monkeypatch):
    """What timers were set to; none runs."""
    found = []
    monkeypatch.setattr(signal, "setitimer", lambda which, *seconds: found.append(seconds))
    return found


class Late(Linear):
    """Its client 1 is interrupted by the timer in the second step of the second round."""

    catches = False
    times = 1_000

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if (self.context.client.id, self.context.round, batch_idx) == (1, 1, 1) and self.times:
            self.times -= 1
            loss.backward(retain_graph=True)  # a gradient that must not reach the next client
            if self.catches:
                self.wait_badly()
            signal.raise_signal(signal.SIGALRM)
        return loss

    def wait_badly(self):
        with pytest.raises(ClientError):
            signal.raise_signal(signal.SIGALRM)


class Failing(Late):
    """Raises there by itself."""

    def training_step(self, batch, batch_idx):
        loss = Linear.training_step(self, batch, batch_idx)
        if (self.context.client.id, self.context.round, batch_idx) == (1, 1, 1):
            raise RuntimeError("the disk is gone")
        return loss


def shared_after(tmp_path, model, data, **options):
    return federation(tmp_path, **options).fit(model, data).shared


@pytest.mark.parametrize("catches", [False, True])
def test_a_client_that_takes_too_long_is_left_out_of_its_round(tmp_path, timers, capsys, catches):
    model = Late()
    model.catches = catches
    options = {"rounds": 2, "client_timeout": 7.5, **file_callbacks()}
    run = federation(tmp_path, **options)
    found = run.fit(model, Points()).shared
    assert "it took longer than client_timeout of 7.5 s" in capsys.readouterr().out
    with (run.folder / "metrics.csv").open() as file:
        assert [row["clients/failed"] for row in csv.DictReader(file)] == ["", "1"]

    failing = federation(tmp_path / "failing", rounds=2).fit(Failing(), Points()).shared
    assert torch.equal(found["weight"], failing["weight"])


def test_a_second_try_has_its_own_time(tmp_path, timers):
    model = Late()
    model.times = 1
    options = {"rounds": 2, "on_client_failure": "retry"}
    found = shared_after(tmp_path, model, Points(), client_timeout=7.5, **options)
    expected = shared_after(tmp_path / "whole", Linear(), Points(), **options)
    assert torch.equal(found["weight"], expected["weight"])
    assert timers.count((7.5, AGAIN)) == 7  # 3 clients, 2 rounds, and once more


def test_the_timer_ends_with_what_it_limits(timers):
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(2.5):
        assert timers == [(2.5, AGAIN)]
        assert signal.getsignal(signal.SIGALRM) is not before
    assert timers[-1] == (0,)
    assert signal.getsignal(signal.SIGALRM) is before

    with pytest.raises(KeyError), time_limit(2.5):
        raise KeyError
    assert timers[-1] == (0,)
    assert signal.getsignal(signal.SIGALRM) is before


def test_without_a_limit_there_is_no_timer(tmp_path, timers):
    shared_after(tmp_path, Linear(), Points(), rounds=1)
    assert timers == []


def test_a_limit_that_cannot_be_kept_is_refused(tmp_path):
    with pytest.raises(UserError, match="Leave one of them out"):
        federation(tmp_path, client_timeout=5.0, clients_per_step=2).fit(Linear(), Points())
    with pytest.raises(UserError, match="client_timeout"):
        federation(tmp_path, client_timeout=0.0)

    raised = []

    def fit():
        with pytest.raises(UserError, match="main thread") as error:
            federation(tmp_path, client_timeout=5.0).fit(Linear(), Points())
        raised.append(error)

    thread = threading.Thread(target=fit)
    thread.start()
    thread.join()
    assert len(raised) == 1
