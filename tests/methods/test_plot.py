"""PLOT's plan against POT, its marginals, its loss patch by patch, and what a prompt's and an image's place change."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch

from fedvlp import PLOT
from fedvlp.methods.transport import transport_plan
from tests.helpers.slow import CLASSES, assert_same, spread
from tests.helpers.slow_transport import slow_transport_logits

LABELS = torch.tensor([0, 2, 1])


def make(clip, **options):
    torch.manual_seed(0)
    module = PLOT(CLASSES, clip, prompt_length=4, num_prompts=options.pop("num_prompts", 3), **options)
    spread([module.prompts], 0.5)
    return module


def plan_of_pot(cost, epsilon):
    """Transport of all the mass, of which each patch has and each prompt takes an equal part, as POT solves it."""
    prompts, patches = cost.shape
    takes = np.full(prompts, 1 / prompts)
    has = np.full(patches, 1 / patches)
    return ot.sinkhorn(takes, has, cost.numpy(), epsilon, numItermax=20_000, stopThr=1e-13)


@pytest.mark.parametrize("epsilon", [0.05, 0.1, 0.5])
def test_the_plan_is_that_of_pot(epsilon):
    cost = 1.6 * torch.rand(2, 4, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plan = transport_plan(cost, None, epsilon, 3000)
    expected = torch.stack([torch.from_numpy(plan_of_pot(one, epsilon)) for one in cost])
    torch.testing.assert_close(plan, expected, atol=1e-9, rtol=1e-6)


def test_loss_and_gradients(clip, images):
    module = make(clip, iterations=400)
    loss = module.training_step((images, LABELS), 0)
    prompts = module.prompts.detach().clone().requires_grad_()
    logits = slow_transport_logits(module, images, prompts, lambda cost: plan_of_pot(cost, module.epsilon))
    expected = sum(torch.logsumexp(row, 0) - row[label] for row, label in zip(logits, LABELS, strict=True)) / 3
    (gradient,) = assert_same(loss, expected, [module.prompts], [prompts])
    assert gradient.flatten(1).any(dim=1).all()


@torch.no_grad()
def test_neither_the_order_of_prompts_nor_the_batch_changes_an_image(clip, images):
    module = make(clip)
    logits = module(images)
    one_by_one = torch.cat([module(image[None]) for image in images])
    torch.testing.assert_close(one_by_one, logits, atol=1e-3, rtol=1e-4)
    module.prompts.copy_(module.prompts[[2, 0, 1]].clone())
    torch.testing.assert_close(module(images), logits, atol=1e-3, rtol=1e-4)
