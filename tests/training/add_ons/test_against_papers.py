"""SCAFFOLD, FedDyn and MOON, compared with their papers' algorithms in plain tensors."""

import math

import pytest
import torch

from fedvlp.core.aggregation.server_optimizers import FedAdam
from fedvlp.training.add_ons.fed_dyn import FedDyn
from fedvlp.training.add_ons.moon import MOON, model_contrast
from fedvlp.training.add_ons.scaffold import Scaffold
from tests.helpers.plain_training import RATE, Alike, Equal, Whole, gradient, loss, shares
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation

ROUNDS, STEPS = 4, 3
ALPHA = 0.3
MU, TAU = 2.0, 0.25


def slow_scaffold(data, weights):
    """Compute x and c by Algorithm 1 with option II for all clients."""
    x = torch.zeros(3, 4)
    c = torch.zeros(3, 4)
    own = {client.id: torch.zeros(3, 4) for client in data.clients}
    for _ in range(ROUNDS):
        ends, changes = [], []
        for client in data.clients:
            y = x.clone()
            for _ in range(STEPS):
                g = gradient(lambda weight, client=client: loss(data, client, weight), y)
                y = y - RATE * (g - own[client.id] + c)
            after = own[client.id] - c + (x - y) / (STEPS * RATE)
            changes.append(after - own[client.id])
            own[client.id] = after
            ends.append(y)
        x = sum(weight * end for weight, end in zip(weights, ends, strict=True))
        c = c + sum(weight * change for weight, change in zip(weights, changes, strict=True))
    return x, c


def slow_fed_dyn(data, weights):
    """Compute theta and -h / alpha by Algorithm 1, with gradient descent instead of exact minimization."""
    theta = torch.zeros(3, 4)
    h = torch.zeros(3, 4)
    last = {client.id: torch.zeros(3, 4) for client in data.clients}
    for _ in range(ROUNDS):
        ends = []
        for client in data.clients:

            def objective(weight, client=client, theta=theta):
                proximal = ALPHA / 2 * (weight - theta).square().sum()
                return loss(data, client, weight) - (last[client.id] * weight).sum() + proximal

            own = theta.clone()
            for _ in range(STEPS):
                own = own - RATE * gradient(objective, own)
            last[client.id] = last[client.id] - ALPHA * (own - theta)
            ends.append(own)
        h = h - ALPHA * sum(weight * (end - theta) for weight, end in zip(weights, ends, strict=True))
        theta = sum(weight * end for weight, end in zip(weights, ends, strict=True)) - h / ALPHA
    return theta, -h / ALPHA


def cosine(one, other):
    return (one @ other) / (one.norm() * other.norm())


def contrast(own, shared, last):
    """Compute the mean of l_con, one image at a time."""
    losses = []
    for z, z_glob, z_prev in zip(own, shared, last, strict=True):
        near = torch.exp(cosine(z, z_glob) / TAU)
        far = torch.exp(cosine(z, z_prev) / TAU)
        losses.append(-torch.log(near / (near + far)))
    return sum(losses) / len(losses)


def centered(logits):
    return logits - logits.mean(1, keepdim=True)


def slow_moon(data, weights):
    """Compute w by Algorithm 1, without the term in a client's first round. The server has no memory."""
    w = torch.zeros(3, 4)
    last = {}
    for _ in range(ROUNDS):
        ends = []
        for client in data.clients:
            points, _ = data.points(client.id, client.num_examples)

            def objective(own, client=client, points=points, start=w):
                supervised = loss(data, client, own)
                if client.id not in last:
                    return supervised
                z, z_glob, z_prev = (centered(points @ weight.T) for weight in (own, start, last[client.id]))
                return supervised + MU * contrast(z, z_glob, z_prev)

            own = w.clone()
            for _ in range(STEPS):
                own = own - RATE * gradient(objective, own)
            last[client.id] = own
            ends.append(own)
        w = sum(weight * end for weight, end in zip(weights, ends, strict=True))
    return w, None


@pytest.mark.parametrize(
    ("add_on", "slow", "data"),
    [
        (Scaffold(), slow_scaffold, Whole()),
        (FedDyn(ALPHA), slow_fed_dyn, Whole()),
        (FedDyn(ALPHA), slow_fed_dyn, Equal()),
        (MOON(MU, TAU), slow_moon, Whole()),
    ],
)
def test_training_of_three_weighted_clients_matches_the_paper(tmp_path, add_on, slow, data):
    state = federation(tmp_path, rounds=ROUNDS, steps=STEPS, add_ons=add_on).fit(Linear(RATE), data)
    expected, memory = slow(data, shares(data))
    torch.testing.assert_close(state.shared["weight"], expected, rtol=1e-5, atol=1e-5)
    if memory is not None:
        torch.testing.assert_close(state.memory["add_on/0/0/weight"], memory, rtol=1e-5, atol=1e-5)
    plain = federation(tmp_path, rounds=ROUNDS, steps=STEPS).fit(Linear(RATE), data)
    assert not torch.allclose(plain.shared["weight"], expected, atol=1e-3)


@pytest.mark.parametrize("data", [Alike, lambda: Points(clients=1)])
def test_scaffold_equals_fed_avg_for_equal_clients_or_a_single_client(tmp_path, data):
    plain, ruled = (
        federation(tmp_path, steps=3, **rule).fit(Linear(RATE), data()) for rule in ({}, {"add_ons": Scaffold()})
    )
    torch.testing.assert_close(ruled.shared["weight"], plain.shared["weight"], rtol=1e-5, atol=1e-6)


def test_fed_dyns_server_step_follows_another_aggregator(tmp_path):
    rule = FedAdam(learning_rate=0.25)
    run = federation(tmp_path, rounds=2, steps=2, aggregation=rule, add_ons=FedDyn(ALPHA))
    state = run.fit(Linear(RATE), Whole())
    assert {"add_on/0/0/weight", "train/moments/weight/first"} <= state.memory.keys()


def test_moons_loss_and_gradient_match_the_paper():
    own, shared, last = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    expected = gradient(lambda z: contrast(z, shared, last), own)
    found = gradient(lambda z: model_contrast(z, shared, last, TAU), own)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model_contrast(own, shared, last, TAU), contrast(own, shared, last))
    assert model_contrast(own, shared, shared, TAU).item() == pytest.approx(math.log(2))


def test_each_phase_of_moon_keeps_its_previous_tensors_on_the_client(tmp_path):
    run = federation(tmp_path, rounds=2, add_ons=MOON())
    run.fit(PersonalBias(), Whole())
    memory = {name for name in run.run_state.optimizer_states[2] if name.startswith("add_on/")}
    assert memory == {"add_on/0/0/weight", "add_on/0/0/bias", "add_on/1/0/weight"}
