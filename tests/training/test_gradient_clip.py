"""Gradients of a step are shortened to a norm, the same for clients one after another and at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedvlp.training.batched.shared_optimizer import clip_each
from fedvlp.training.local_rules import FedDyn
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation

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


class Equal(Points):
    """Clients of equally many points, which can be trained at once."""

    def __init__(self):
        super().__init__(clients=1)
        first = self.clients[0]
        self.clients = [type(first)(i, i, 8, f"client{i}") for i in range(3)]


class Sloped(PersonalBias):
    def __init__(self):
        super().__init__()
        self.make_optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.5)


def test_the_norm_is_of_all_tensors_of_one_client_together():
    first = torch.zeros(2, 2, requires_grad=True)
    second = torch.zeros(2, requires_grad=True)
    without = torch.zeros(2, requires_grad=True)
    first.grad = torch.tensor([[2.0, 4.0], [0.25, 0.5]])
    second.grad = torch.tensor([4.0, 0.5])  # norms 6 and 0.75
    clip_each([first, second, without], 3.0)
    torch.testing.assert_close(first.grad, torch.tensor([[1.0, 2.0], [0.25, 0.5]]))
    torch.testing.assert_close(second.grad, torch.tensor([2.0, 0.5]))
    assert without.grad is None


def test_a_gradient_that_is_not_finite_is_refused_as_ever(tmp_path):
    run = federation(tmp_path, rounds=1, gradient_clip_val=NORM)
    run.fit(Linear(), Points(spoil=True))
    assert run.run_state.history[0]["clients/rejected"] == 1


def test_rules_of_local_training_take_gradients_as_they_are(tmp_path):
    with pytest.raises(UserError, match=r"FedDyn is defined for gradients as they are. Leave gradient_clip_val out"):
        federation(tmp_path, gradient_clip_val=NORM, rule=FedDyn(0.5))
