"""FedProx's term, against the gradient written out step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedvlp.training.proximal import ProximalTerm
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation

RATE = 0.5


class Whole(Points):
    """Each client's points in one batch, so that their order does not matter."""

    batch_size = 100


def written_out(weight, rounds, steps):
    """Returns the shared matrix after rounds of FedProx by hand: w <- w - lr (gradient of F_k + mu (w - w_t))."""
    data = Whole()
    shared = torch.zeros(3, 4)
    for _ in range(rounds):
        mean = torch.zeros(3, 4)
        for client in data.clients:
            points, labels = data.points(client.id, client.num_examples)
            own = shared.clone()
            for _ in range(steps):
                own.requires_grad_()
                (gradient,) = torch.autograd.grad(F.cross_entropy(points @ own.T, labels), own)
                own = own.detach() - RATE * (gradient + weight * (own.detach() - shared))
            mean += client.num_examples / sum(each.num_examples for each in data.clients) * own
        shared = mean
    return shared


@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_each_step_adds_the_weighted_distance_to_the_gradient(tmp_path, weight):
    run = federation(tmp_path, rounds=2, steps=3, proximal_weight=weight)
    found = run.fit(Linear(RATE), Whole()).shared["weight"]
    torch.testing.assert_close(found, written_out(weight, 2, 3), rtol=1e-5, atol=1e-6)


class SameSize(Points):
    """Clients of equally many points, who can be trained together."""

    def __init__(self):
        super().__init__()
        self.clients = [replace(client, num_examples=8) for client in self.clients]


def test_the_heavier_the_term_the_nearer_clients_stay(tmp_path):
    start = Linear(0.05).state_dict()["weight"]
    moved = []
    for weight in (0.0, 1.0, 10.0):
        after = federation(tmp_path, rounds=1, epochs=4, proximal_weight=weight).fit(Linear(0.05), Points())
        moved.append((after.shared["weight"] - start).norm().item())
    assert moved[0] > 1.2 * moved[1] > 1.2 * moved[2] > 0


def test_what_stays_on_a_client_is_held_to_nothing():
    module = PersonalBias()
    tensors = {"weight": module.weight, "bias": module.bias}
    assert ProximalTerm.around(1.0, module, tensors).start.keys() == {"weight"}
    assert ProximalTerm.around(1.0, module, {"bias": module.bias}) is None
