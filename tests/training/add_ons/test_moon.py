"""MOON, against Eqs. 3 and 4 image by image."""

from __future__ import annotations

import math

import pytest
import torch

from fedvlp.training.add_ons.moon import MOON, model_contrast
from tests.helpers.toy_federation import Linear, PersonalBias
from tests.helpers.written_out import RATE, Whole, federation, gradient, loss, shares

MU = 2.0
TAU = 0.25


def likeness(one, other):
    """The cosine of two vectors."""
    return (one @ other) / (one.norm() * other.norm())


def contrast(own, shared, last):
    """l_con of each image in turn, and their mean."""
    losses = []
    for z, z_glob, z_prev in zip(own, shared, last, strict=True):
        near = torch.exp(likeness(z, z_glob) / TAU)
        far = torch.exp(likeness(z, z_prev) / TAU)
        losses.append(-torch.log(near / (near + far)))
    return sum(losses) / len(losses)


def test_the_loss_and_its_gradient_are_those_of_the_paper():
    own, shared, last = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    expected = gradient(lambda z: contrast(z, shared, last), own)
    found = gradient(lambda z: model_contrast(z, shared, last, TAU), own)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model_contrast(own, shared, last, TAU), contrast(own, shared, last))
    assert model_contrast(own, shared, shared, TAU).item() == pytest.approx(math.log(2))


def centered(logits):
    return logits - logits.mean(1, keepdim=True)


def written_out(data, rounds, steps):
    """w after Algorithm 1, in which a client's first round has no term."""
    w = torch.zeros(3, 4)
    last = {}
    for _ in range(rounds):
        mean = torch.zeros(3, 4)
        for share, client in zip(shares(data), data.clients, strict=True):
            points, _ = data.points(client.id, client.num_examples)

            def objective(own, client=client, points=points, start=w):
                supervised = loss(data, client, own)
                if client.id not in last:
                    return supervised
                z, z_glob, z_prev = (centered(points @ weight.T) for weight in (own, start, last[client.id]))
                return supervised + MU * contrast(z, z_glob, z_prev)

            own = w.clone()
            for _ in range(steps):
                own = own - RATE * gradient(objective, own)
            mean = mean + share * own
            last[client.id] = own
        w = mean
    return w


def test_three_clients_of_unequal_size_train_as_the_paper_says(tmp_path):
    add_on = MOON(MU, TAU)
    state = federation(tmp_path, rounds=4, steps=3, add_ons=add_on).fit(Linear(RATE), Whole())
    expected = written_out(Whole(), 4, 3)
    torch.testing.assert_close(state.shared["weight"], expected, rtol=1e-5, atol=1e-5)
    plain = federation(tmp_path, rounds=4, steps=3).fit(Linear(RATE), Whole())
    assert not torch.allclose(plain.shared["weight"], expected, atol=1e-3)


def test_each_phase_keeps_its_own_last_tensors_with_those_that_stay_on_the_client(tmp_path):
    run = federation(tmp_path, rounds=2, add_ons=MOON())
    run.fit(PersonalBias(), Whole())
    kept = {name for name in run.run_state.optimizer_states[2] if name.startswith("add_on/")}
    assert kept == {"add_on/0/0/weight", "add_on/0/0/bias", "add_on/1/0/weight"}
