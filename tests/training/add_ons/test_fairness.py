"""q-FedAvg and AFL, compared with their papers' algorithms in plain tensors."""

import itertools
from dataclasses import replace

import pytest
import torch

from fedvlp.core.aggregation.robust import CoordinateMedian
from fedvlp.core.state import ClientUpdate
from fedvlp.training.add_ons.base import ServerRound
from fedvlp.training.add_ons.fairness import AFL, QFedAvg
from fedvlp.training.add_ons.fed_dg_ga import FedDGGA
from fedvlp.utils.errors import UserError
from tests.helpers.plain_training import RATE, Equal, Hard, Whole, gradient, loss, shares
from tests.helpers.toy_federation import Linear, federation

ROUNDS = 4


def slow_q_fed_avg(data, q, steps, lipschitz):
    """Compute w by Algorithm 2, with weights p_k for all clients."""
    w = torch.zeros(3, 4)
    for _ in range(ROUNDS):
        numerator, denominator = torch.zeros(3, 4), 0.0
        for client, p in zip(data.clients, shares(data), strict=True):
            own = w.clone()
            for _ in range(steps):
                own = own - RATE * gradient(lambda weight, client=client: loss(data, client, weight), own)
            before = loss(data, client, w).item()
            change = lipschitz * (w - own)
            numerator = numerator + p * before**q * change
            squared = change.square().sum().item()
            denominator += p * (q * before ** (q - 1) * squared + lipschitz * before**q)
        w = w - numerator / denominator
    return w


@pytest.mark.parametrize(("q", "lipschitz"), [(0.5, None), (1.0, 0.3), (5.0, None)])
def test_q_fed_avg_matches_the_paper(tmp_path, q, lipschitz):
    add_on = QFedAvg(q, lipschitz)
    state = federation(tmp_path, rounds=ROUNDS, steps=3, add_ons=add_on).fit(Linear(RATE), Hard())
    expected = slow_q_fed_avg(Hard(), q, 3, lipschitz or 1 / RATE)
    torch.testing.assert_close(state.shared["weight"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("data", [Hard, Equal])
def test_fed_avg_is_the_limit_of_both(tmp_path, data):
    options = {"rounds": ROUNDS, "steps": 3}
    plain = federation(tmp_path, **options).fit(Linear(RATE), data()).shared["weight"]
    fair = federation(tmp_path, **options, add_ons=QFedAvg(q=0.0)).fit(Linear(RATE), data()).shared["weight"]
    assert torch.equal(fair, plain)
    still = federation(tmp_path, **options, add_ons=AFL(step=0.0)).fit(Linear(RATE), data()).shared["weight"]
    torch.testing.assert_close(still, plain)


def nearest_mixture(point, total):
    """Try every set of positive coordinates, and keep the nearest mixture."""
    found = []
    for kept in itertools.product((False, True), repeat=len(point)):
        inside = torch.tensor(kept)
        if inside.any():
            moved = torch.where(inside, point + (total - point[inside].sum()) / inside.sum(), 0.0)
            if (moved >= 0).all():
                found.append(((moved - point).norm().item(), moved))
    return min(found, key=lambda pair: pair[0])[1]


def slow_afl(data, step):
    """Compute w and lambda by alternating gradient steps, one per round."""
    w, mixture = torch.zeros(3, 4), torch.tensor(shares(data), dtype=torch.float64)
    for _ in range(ROUNDS):
        losses = torch.stack([loss(data, client, w) for client in data.clients]).double()
        w = w - RATE * gradient(
            lambda weight, m=mixture: sum(m[i] * loss(data, c, weight) for i, c in enumerate(data.clients)), w
        )
        mixture = nearest_mixture(mixture + step * losses, 1.0)
    return w, mixture


@pytest.mark.parametrize("step", [0.1, 20.0])
def test_afl_with_one_local_step_matches_the_paper(tmp_path, step):
    state = federation(tmp_path, rounds=ROUNDS, steps=1, add_ons=AFL(step)).fit(Linear(RATE), Hard())
    expected, mixture = slow_afl(Hard(), step)
    torch.testing.assert_close(state.shared["weight"], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state.memory["add_on/0/0/mixture"], mixture, rtol=1e-5, atol=1e-6)
    assert (mixture == 0).any() == (step == 20.0)


@pytest.mark.parametrize("add_on", [QFedAvg(5.0), AFL(1.0)], ids=["QFedAvg", "AFL"])
def test_the_worst_client_gains(tmp_path, add_on):
    def losses(**rule):
        trained = federation(tmp_path, rounds=30, steps=1, **rule).fit(Linear(RATE), Hard()).shared["weight"]
        return [loss(Hard(), client, trained).item() for client in Hard().clients]

    plain, fair = losses(), losses(add_ons=add_on)
    assert max(fair) < max(plain) - 0.01
    assert max(fair) - min(fair) < max(plain) - min(plain)


def server_round(order, losses, memory):
    """Make the server's view of three clients in a given order."""
    clients = [replace(client, num_examples=8) for client in Whole().clients]
    ends = [torch.tensor([0.5, -2.0]), torch.tensor([3.0, 1.0]), torch.tensor([-1.0, 4.0])]
    updates = [ClientUpdate(clients[i], {"p": ends[i]}, 8) for i in order]
    sent = [{"measured": torch.tensor([losses[i], 0.1])} for i in order]
    weights = {client.id: 8.0 for client in clients}
    return ServerRound(updates, sent, {"p": torch.zeros(2)}, memory, ("p",), clients, weights, round=0, rounds=1)


@pytest.mark.parametrize("add_on", [QFedAvg(2.0), AFL(0.3)], ids=["QFedAvg", "AFL"])
def test_the_order_of_clients_does_not_matter(add_on):
    def by_client(order):
        updates, memory = add_on.before_aggregation(server_round(order, [0.5, 1.5, 0.9], {}))
        return {update.client.id: (update.weight, update.state["p"].tolist()) for update in updates}, memory

    (one, memory), (other, same) = by_client([0, 1, 2]), by_client([2, 0, 1])
    assert one[1][0] > one[0][0] or isinstance(add_on, AFL)  # AFL's weights change in the next round
    for client, (weight, values) in one.items():
        assert other[client] == (pytest.approx(weight), pytest.approx(values))
    for name, value in memory.items():
        torch.testing.assert_close(same[name], value)


def test_an_absent_client_keeps_its_weight():
    mixture = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    updates, memory = AFL(0.1).before_aggregation(server_round([0, 2], [3.0, 9.9, 1.0], {"mixture": mixture}))
    assert [update.weight for update in updates] == [0.2, 0.5]
    torch.testing.assert_close(memory["mixture"], torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64))


@pytest.mark.parametrize("claimed", [-3.0, 0.0, 3e38])
def test_a_claimed_loss_leaves_the_result_finite(claimed):
    for add_on in (QFedAvg(5.0), AFL(0.1)):
        updates, memory = add_on.before_aggregation(server_round([0, 1, 2], [claimed, 1.0, 1.0], {}))
        values = [torch.tensor(update.weight) for update in updates] + [update.state["p"] for update in updates]
        assert all(value.isfinite().all() for value in (*values, *memory.values()))
        assert any(update.weight for update in updates)


def test_unsupported_combinations_are_rejected(tmp_path):
    with pytest.raises(UserError, match="CoordinateMedian ignores weights"):
        federation(tmp_path, add_ons=QFedAvg(), aggregation=CoordinateMedian()).fit(Linear(), Whole())
    with pytest.raises(UserError, match="FedDGGA and AFL set the clients' weights"):
        federation(tmp_path, add_ons=[FedDGGA(), AFL()]).fit(Linear(), Whole())
    with pytest.raises(UserError, match="secure_sum does not support the add-on QFedAvg"):
        federation(tmp_path, add_ons=QFedAvg(), secure_sum=True).fit(Linear(), Whole())
