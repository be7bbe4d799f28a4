from __future__ import annotations

import torch
from open_clip.transformer import QuickGELU as Module

from fedvlp.clip.towers.quick_gelu import QuickGELU

X = torch.linspace(-9, 9, 61).view(1, 61).repeat(3, 1)
SIGNAL = torch.linspace(-1, 2, 183).view(3, 61)


def value_and_gradient(function):
    x = X.clone().requires_grad_()
    value = function(x)
    return value.detach(), torch.autograd.grad(value, x, SIGNAL)[0]


def test_equals_open_clips_module():
    found = value_and_gradient(QuickGELU.apply)
    expected = value_and_gradient(Module())
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], atol=1e-6, rtol=1e-5)


def test_gradient_is_that_of_differences():
    assert torch.autograd.gradcheck(QuickGELU.apply, X[:1].double().requires_grad_())


def test_can_be_stacked():
    found = value_and_gradient(torch.func.vmap(QuickGELU.apply))
    expected = value_and_gradient(Module())
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
