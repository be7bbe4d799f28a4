"""SCAFFOLD, against Algorithm 1 with plain tensors."""

from __future__ import annotations

import pytest
import torch

from fedvlp.training.add_ons.scaffold import Scaffold
from tests.helpers.toy_federation import Linear, Points
from tests.helpers.written_out import RATE, Alike, Whole, federation, gradient, loss, shares


def written_out(data, rounds, steps):
    """x and c after Algorithm 1 with option II for all clients, whose weights are their shares of the points."""
    x = torch.zeros(3, 4)
    c = torch.zeros(3, 4)
    own = {client.id: torch.zeros(3, 4) for client in data.clients}
    for _ in range(rounds):
        ends = {}
        changes = {}
        for client in data.clients:
            y = x.clone()
            for _ in range(steps):
                g = gradient(lambda weight, client=client: loss(data, client, weight), y)
                y = y - RATE * (g - own[client.id] + c)
            after = own[client.id] - c + (x - y) / (steps * RATE)
            changes[client.id] = after - own[client.id]
            own[client.id] = after
            ends[client.id] = y
        x = sum(share * ends[client.id] for share, client in zip(shares(data), data.clients, strict=True))
        c = c + sum(share * changes[client.id] for share, client in zip(shares(data), data.clients, strict=True))
    return x, c


def test_three_clients_of_unequal_size_train_as_the_paper_says(tmp_path):
    state = federation(tmp_path, rounds=4, steps=3, add_ons=Scaffold()).fit(Linear(RATE), Whole())
    x, c = written_out(Whole(), rounds=4, steps=3)
    torch.testing.assert_close(state.shared["weight"], x, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(state.memory["add_on/0/0/weight"], c, rtol=1e-5, atol=1e-6)
    plain = federation(tmp_path, rounds=4, steps=3).fit(Linear(RATE), Whole())
    assert not torch.allclose(plain.shared["weight"], x, atol=1e-3)


@pytest.mark.parametrize("data", [Alike, lambda: Points(clients=1)])
def test_equal_clients_and_a_client_alone_train_as_with_fed_avg(tmp_path, data):
    plain, ruled = (
        federation(tmp_path, steps=3, **rule).fit(Linear(RATE), data()) for rule in ({}, {"add_ons": Scaffold()})
    )
    torch.testing.assert_close(ruled.shared["weight"], plain.shared["weight"], rtol=1e-5, atol=1e-6)


def test_a_client_that_is_not_asked_changes_neither_its_variate_nor_its_share_of_the_servers(tmp_path):
    run = federation(tmp_path, rounds=1, steps=2, cohort_size=1, seed=3, add_ons=Scaffold())
    state = run.fit(Linear(RATE), Whole())
    (asked,) = run.run_state.optimizer_states
    own = run.run_state.optimizer_states[asked]["add_on/0/0/weight"]
    torch.testing.assert_close(state.memory["add_on/0/0/weight"], shares(Whole())[asked] * own)
    assert own.abs().max() > 0.01
