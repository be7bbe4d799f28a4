"""Gradients of a step are shortened to a norm."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedvlp.training.add_ons import Scaffold
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed
from tests.helpers.toy_federation import Linear, Points, federation

NORM = 0.125


def test_a_client_takes_clipped_steps(tmp_path):
    data = Points(clients=1)
    run = federation(tmp_path, rounds=1, gradient_clip_val=NORM, default_callbacks=False)
    after = run.fit(Linear(), data)
    weight = torch.zeros(3, 4, requires_grad=True)
    for inputs, labels in data.train_dataloader(data.clients[0], seed=derive_seed(0, 0, 0, 0)):
        (gradient,) = torch.autograd.grad(F.cross_entropy(inputs["features"] @ weight.mT, labels), weight)
        assert gradient.norm() > 1.5 * NORM
        weight = (weight - 0.5 * gradient * NORM / gradient.norm()).detach().requires_grad_()
    torch.testing.assert_close(after.shared["weight"], weight, atol=1e-6, rtol=1e-5)
    assert run.description["training"]["gradient_clip_val"] == NORM


def test_a_gradient_that_is_not_finite_is_refused_as_ever(tmp_path):
    run = federation(tmp_path, rounds=1, gradient_clip_val=NORM)
    run.fit(Linear(), Points(spoil=True))
    assert run.run_state.history[0]["clients/rejected"] == 1


def test_an_add_on_that_needs_gradients_unchanged_refuses_it(tmp_path):
    with pytest.raises(UserError, match=r"Scaffold needs gradients unchanged. Leave local.gradient_clip_val out"):
        federation(tmp_path, gradient_clip_val=NORM, add_ons=Scaffold())
