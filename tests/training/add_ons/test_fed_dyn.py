"""FedDyn, against Algorithm 1 with plain tensors."""

from __future__ import annotations

import pytest
import torch

from fedvlp.core.aggregation.server_optimizers import FedAdam
from fedvlp.training.add_ons.fed_dyn import FedDyn
from tests.helpers.toy_federation import Linear
from tests.helpers.written_out import RATE, Equal, Whole, federation, gradient, loss, shares

ALPHA = 0.3


def written_out(data, rounds, steps, weights):
    """theta after Algorithm 1 where gradient descent stands for the clients' exact minimization."""
    theta = torch.zeros(3, 4)
    h = torch.zeros(3, 4)
    last = {client.id: torch.zeros(3, 4) for client in data.clients}
    for _ in range(rounds):
        ends = {}
        for client in data.clients:

            def objective(weight, client=client, theta=theta):
                held = ALPHA / 2 * (weight - theta).square().sum()
                return loss(data, client, weight) - (last[client.id] * weight).sum() + held

            own = theta.clone()
            for _ in range(steps):
                own = own - RATE * gradient(objective, own)
            last[client.id] = last[client.id] - ALPHA * (own - theta)
            ends[client.id] = own
        h = h - ALPHA * sum(weight * (ends[k] - theta) for k, weight in enumerate(weights))
        theta = sum(weight * ends[k] for k, weight in enumerate(weights)) - h / ALPHA
    return theta, h


@pytest.mark.parametrize(("data", "weights"), [(Equal(), [1 / 3] * 3), (Whole(), shares(Whole()))])
def test_clients_train_as_the_paper_says_each_with_its_weight(tmp_path, data, weights):
    state = federation(tmp_path, rounds=4, steps=3, add_ons=FedDyn(ALPHA)).fit(Linear(RATE), data)
    theta, h = written_out(data, 4, 3, weights)
    torch.testing.assert_close(state.shared["weight"], theta, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(-ALPHA * state.memory["add_on/0/0/weight"], h, rtol=1e-5, atol=1e-5)
    plain = federation(tmp_path, rounds=4, steps=3).fit(Linear(RATE), data)
    assert not torch.allclose(plain.shared["weight"], theta, atol=1e-3)


def test_a_client_alone_keeps_the_gradient_of_its_objective(tmp_path):
    run = federation(tmp_path, rounds=1, steps=2, cohort_size=1, seed=3, add_ons=FedDyn(ALPHA))
    state = run.fit(Linear(RATE), Whole())
    (asked,) = run.run_state.optimizer_states
    own = run.run_state.optimizer_states[asked]["add_on/0/0/weight"]
    move = -own / ALPHA
    drift = shares(Whole())[asked] * move
    torch.testing.assert_close(state.memory["add_on/0/0/weight"], drift)
    torch.testing.assert_close(state.shared["weight"], move + drift)


def test_the_servers_step_stands_behind_another_aggregation(tmp_path):
    add_on = FedAdam(learning_rate=0.25)
    run = federation(tmp_path, rounds=2, steps=2, aggregation=add_on, add_ons=FedDyn(ALPHA))
    state = run.fit(Linear(RATE), Whole())
    assert {"add_on/0/0/weight", "train/first/weight"} <= state.memory.keys()
