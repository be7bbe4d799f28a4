"""FedNova, compared with Eq. 6 in plain tensors."""

import pytest
import torch

from fedvlp.core.state import ClientUpdate
from fedvlp.training.add_ons.base import ServerRound
from fedvlp.training.add_ons.fed_dyn import FedDyn
from fedvlp.training.add_ons.fed_nova import FedNova
from fedvlp.training.add_ons.fed_prox import FedProx
from tests.helpers.plain_training import RATE, Whole, gradient, shares
from tests.helpers.toy_federation import Linear, Points, federation

MOMENTUM = 0.8


class Batches(Points):
    """Three clients with 8, 12 and 16 points in batches of 4: 2, 3 and 4 steps per pass."""

    def train_dataloader(self, client=None, seed=None, once=False):
        return super().train_dataloader(client, seed=client.id)  # the same order in each round


def make_method(rate=RATE, momentum=MOMENTUM):
    module = Linear(rate)
    module.make_optimizer = lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=momentum)
    return module


def slow_fed_nova(data, rounds, momentum=0.0, mu=0.0):
    """Compute x after rounds of Eq. 6, with one pass per client and round. mu weights FedProx's term."""
    x = torch.zeros(3, 4)
    for _ in range(rounds):
        directions = []
        norms = []
        for client in data.clients:
            y = x.clone()
            velocity = torch.zeros(3, 4)
            batches = data.train_dataloader(client)
            for inputs, labels in batches:
                points = inputs["features"]
                g = gradient(lambda w, p=points, t=labels: torch.nn.functional.cross_entropy(p @ w.T, t), y)
                velocity = momentum * velocity + g + mu * (y - x)
                y = y - RATE * velocity
            tau = len(batches)
            # The gradient of step j enters the velocities of steps j to tau: 1 + rho + ... + rho^(tau - 1 - j). Without
            # momentum, FedProx's term shrinks it by 1 - eta mu in each later step (Section 4.1).
            vector = [sum(momentum**i for i in range(tau - j)) * (1 - RATE * mu) ** (tau - 1 - j) for j in range(tau)]
            norms.append(sum(vector))
            directions.append((x - y) / (RATE * sum(vector)))
        effective = sum(p * norm for p, norm in zip(shares(data), norms, strict=True))
        x = x - effective * RATE * sum(p * d for p, d in zip(shares(data), directions, strict=True))
    return x


@pytest.mark.parametrize("momentum", [0.0, MOMENTUM])
def test_normalized_updates_match_the_paper(tmp_path, momentum):
    state = federation(tmp_path, rounds=4, add_ons=FedNova()).fit(make_method(momentum=momentum), Batches())
    expected = slow_fed_nova(Batches(), 4, momentum)
    torch.testing.assert_close(state.shared["weight"], expected, rtol=1e-5, atol=1e-5)
    plain = federation(tmp_path, rounds=4).fit(make_method(momentum=momentum), Batches())
    assert not torch.allclose(plain.shared["weight"], expected, atol=1e-3)


@pytest.mark.parametrize("other", [FedProx(weight=0.6), FedDyn(alpha=0.6)], ids=["FedProx", "FedDyn"])
def test_proximal_terms_of_other_add_ons_shorten_the_steps(tmp_path, other):
    # In FedDyn's first round, clients train like FedProx. The server's step follows.
    def fit_weight(**rules):
        return federation(tmp_path, rounds=1, **rules).fit(make_method(momentum=0.0), Batches()).shared["weight"]

    expected = slow_fed_nova(Batches(), 1, mu=0.6)
    server_step = 2 if isinstance(other, FedDyn) else 1
    torch.testing.assert_close(fit_weight(add_ons=[FedNova(), other]), server_step * expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fit_weight(add_ons=[other, FedNova()]), server_step * expected, rtol=1e-5, atol=1e-5)


def test_stragglers_count_by_their_images(tmp_path):
    """A client's direction is weighted by its images, not by its steps. The gradients are constant."""

    class Constant(Linear):
        """Each client's loss has a constant gradient in its own direction."""

        def training_step(self, batch, batch_idx):
            return self.weight[self.context.client.id].sum()

    options = {"rounds": 1, "steps": 10, "stragglers": 1.0}
    state = federation(tmp_path, **options, add_ons=FedNova()).fit(Constant(RATE), Whole())
    moved = state.shared["weight"][:, 0]
    torch.testing.assert_close(moved / moved.sum(), torch.tensor(shares(Whole())))
    plain = federation(tmp_path, **options).fit(Constant(RATE), Whole()).shared["weight"][:, 0]
    torch.testing.assert_close(moved.sum(), plain.sum())
    assert not torch.allclose(moved, plain, atol=1e-2)


@pytest.mark.parametrize("claimed", [1e-9, 0.0, -3.0])
def test_a_claimed_length_below_one_counts_as_one_step(claimed):
    data = Points()
    ends = [torch.tensor([0.5, -2.0]), torch.tensor([3.0, 1.0]), torch.tensor([-1.0, 4.0])]
    updates = []
    for client, end in zip(data.clients, ends, strict=True):
        updates.append(ClientUpdate(client, {"p": end}, client.num_examples))
    weights = {client.id: float(client.num_examples) for client in data.clients}

    def rescaled(*lengths):
        messages = [{"length": torch.tensor([length])} for length in lengths]
        shared = {"p": torch.zeros(2)}
        server = ServerRound(updates, messages, shared, {}, ("p",), data.clients, weights, round=0, rounds=1)
        return [update.state["p"] for update in FedNova().before_aggregation(server)[0]]

    # 2/9, 3/9 and 4/9 of the points: tau_eff of 1, 4 and 2 steps.
    effective = (2 * 1 + 3 * 4 + 4 * 2) / 9
    expected = [effective * end / steps for end, steps in zip(ends, (1, 4, 2), strict=True)]
    torch.testing.assert_close(rescaled(claimed, 4.0, 2.0), expected)
