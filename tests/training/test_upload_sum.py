"""Uploads that are added up one by one give what all of them together give, and only one is there at a time."""

from __future__ import annotations

import pytest
import torch

from fedvlp.core.aggregation import CoordinateMedian
from fedvlp.core.phases import Phase
from fedvlp.core.state import Client, ClientUpdate, weighted_mean
from fedvlp.core.strategies import FedAvg, Local, MovingAverage, ema_share
from fedvlp.core.update_check import forms
from fedvlp.tools.attacks import SignFlip
from fedvlp.training import upload_sum as module
from fedvlp.training.callback import FederationCallback
from fedvlp.training.client_trainer import ClientResult
from fedvlp.training.upload_sum import UploadSum, upload_sum
from tests.helpers.assertions import assert_equal, assert_same_run, run_metrics
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation

SIZES = (10, 7, 25)


class Failing(Linear):
    """Fails on one client in the second round, and learns NaN on another in the third."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if (self.context.client.id, self.context.round) == (0, 1):
            raise RuntimeError("the disk is gone")
        return loss * float("nan") if (self.context.client.id, self.context.round) == (3, 2) else loss


class Seen(FederationCallback):
    """Notes which uploads have numbers: when a client ends, and when the phase does."""

    def __init__(self):
        self.uploads = []
        self.at_end = []

    def on_client_end(self, federation, phase, update):
        self.uploads.append((update.client.id, update.state["weight"].is_meta))

    def on_phase_end(self, federation, phase, before, server, updates):
        self.at_end.append([update.state["weight"].is_meta for update in updates])


def results():
    found = []
    for i, size in enumerate(SIZES):
        state = {"w": torch.randn(40, 3, generator=torch.Generator().manual_seed(i)), "b": torch.tensor([i + 0.3])}
        found.append(ClientResult(ClientUpdate(Client(i, i, size), state, size), {}, {}))
    return found


def made_sum(weighting, refusal=lambda result: ""):
    return UploadSum(FedAvg(weighting), [Client(i, i, n) for i, n in enumerate(SIZES)], refusal)


@pytest.mark.parametrize(("weighting", "weights"), [("examples", SIZES), ("uniform", (1, 1, 1))])
def test_the_sum_is_the_weighted_mean_bit_for_bit(weighting, weights):
    adding = made_sum(weighting)
    taken = [adding.take(result) for result in results()]
    assert all(value.is_meta for result in taken for value in result.update.state.values())
    assert [forms(each.update.state) for each in taken] == [forms(each.update.state) for each in results()]
    (mean,) = adding.updates()
    assert_equal(mean.state, weighted_mean([each.update.state for each in results()], weights))


def test_who_is_refused_is_not_in_the_mean():
    adding = made_sum("examples", lambda result: "is late" if result.update.client.id == 1 else "")
    assert [adding.take(each).refusal for each in results()] == ["", "is late", ""]
    (mean,) = adding.updates()
    first, _, last = (each.update.state for each in results())
    torch.testing.assert_close(mean.state, weighted_mean([first, last], [10, 25]), rtol=1e-6, atol=1e-6)


def test_nobody_is_no_update():
    adding = made_sum("examples", lambda result: "is late")
    adding.take(results()[0])
    assert adding.updates() == []


@pytest.mark.parametrize(
    ("strategy", "is_added"),
    [
        (FedAvg(), True),
        (FedAvg("uniform"), True),
        (FedAvg(rule=CoordinateMedian()), False),
        (MovingAverage(FedAvg(), ema_share(0.5), ("w",)), False),
        (Local(), False),
    ],
)
def test_only_a_plain_mean_of_large_uploads_is_added_up(strategy, is_added, monkeypatch):
    phase = Phase("train", ("w",), ("w",), strategy)
    sent = forms({"w": torch.zeros(2, 5)})
    monkeypatch.setattr(module, "LARGE_BYTES", 40)
    assert (upload_sum(phase, (), sent, str) is not None) == is_added
    monkeypatch.setattr(module, "LARGE_BYTES", 41)
    assert upload_sum(phase, (), sent, str) is None


def fit(folder, kind, large, monkeypatch, data=None, **options):
    seen = Seen()
    monkeypatch.setattr(module, "LARGE_BYTES", 0 if large else 1 << 26)
    run = federation(folder, default_callbacks=False, callbacks=[seen], seed=3, **options)
    run.fit(kind(), data or Points(clients=5))
    return run.run_state, seen


@pytest.mark.parametrize("options", [{}, {"cohort_size": 3}, {"attack": SignFlip(2)}], ids=str)
@pytest.mark.parametrize("kind", [Linear, PersonalBias])
def test_a_run_of_large_uploads_is_that_of_small_ones(tmp_path, monkeypatch, kind, options):
    small, _ = fit(tmp_path, kind, False, monkeypatch, **options)
    large, seen = fit(tmp_path, kind, True, monkeypatch, **options)
    assert_same_run(large, small)
    assert not any(is_meta for _, is_meta in seen.uploads)
    assert all(all(phase) for phase in seen.at_end)


def test_the_order_of_clients_does_not_matter(tmp_path, monkeypatch):
    backwards = Points(clients=5)
    backwards.clients.reverse()
    straight, _ = fit(tmp_path, Linear, True, monkeypatch)
    reverse, seen = fit(tmp_path, Linear, True, monkeypatch, data=backwards)
    assert_equal(reverse.server.shared, straight.server.shared)
    assert [client for client, _ in seen.uploads] == 3 * [0, 1, 2, 3, 4]


@pytest.mark.parametrize("max_norm", [None, 1e9])
def test_who_fails_or_sends_nan_is_left_out_as_of_small_uploads(tmp_path, monkeypatch, max_norm):
    small, _ = fit(tmp_path, Failing, False, monkeypatch, max_update_norm=max_norm)
    large, _ = fit(tmp_path, Failing, True, monkeypatch, max_update_norm=max_norm)
    counts = [(row.get("clients/failed", 0), row.get("clients/rejected", 0)) for row in run_metrics(large)]
    assert counts == [(0, 0), (1, 0), (0, 1)]
    assert run_metrics(large)[1].keys() == run_metrics(small)[1].keys()
    torch.testing.assert_close(large.server.shared, small.server.shared, rtol=1e-5, atol=1e-6)
