"""FedOTP: its plan against POT, its marginals, its loss patch by patch, and what is done on unseen domains."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch

from fedvlp import FedOTP
from fedvlp.methods.transport import transport_plan
from tests.helpers.slow import CLASSES, assert_same, spread
from tests.helpers.slow_transport import slow_transport_logits

LABELS = torch.tensor([0, 2, 1])


def make(clip, **options):
    torch.manual_seed(0)
    module = FedOTP(CLASSES, clip, prompt_length=4, **options)
    spread([module.global_prompt, module.local_prompt], 0.5)
    return module


def costs(*shape, seed=0):
    return 1.6 * torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def plan_of_pot(cost, mass, epsilon):
    """Transport of exactly the mass of all prompts, of which no patch gives more than it has, as POT solves it."""
    prompts, patches = cost.shape
    has = np.full(patches, 1 / patches)
    takes = np.full(prompts, mass / prompts)
    return ot.partial.entropic_partial_wasserstein(takes, has, cost.numpy(), epsilon, m=mass * (1 - 1e-12))


@pytest.mark.parametrize(("mass", "epsilon"), [(0.55, 0.3), (1.0, 0.2)])
def test_the_plan_is_that_of_pot(mass, epsilon):
    cost = costs(2, 2, 2, 11)
    plan = transport_plan(cost, mass, epsilon, 2000)
    for image in range(2):
        for label in range(2):
            expected = torch.from_numpy(plan_of_pot(cost[image, label], mass, epsilon))
            torch.testing.assert_close(plan[image, label], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mass", [0.6, 1.0])
def test_the_plan_has_its_marginals(mass):
    """Each prompt takes its share exactly, and no patch gives more than it has; with all the mass each gives it all."""
    plan = transport_plan(costs(4, 2, 9), mass, 0.05, 3000)
    assert (plan >= 0).all()
    torch.testing.assert_close(plan.sum(-1), torch.full((4, 2), mass / 2, dtype=plan.dtype))
    given = plan.sum(-2) * 9
    assert given.max() <= 1 + 1e-6
    assert (given.min() > 1 - 1e-6) == (mass == 1.0)


def test_costs_far_apart_leave_a_plan():
    """exp(-C / epsilon) alone would be zero everywhere in single precision."""
    cost = (1 + costs(2, 9)).float()
    plan = transport_plan(cost, 0.8, 0.004, 100)
    torch.testing.assert_close(plan.sum(-1), torch.full((2,), 0.4))
    torch.testing.assert_close(plan, transport_plan(cost - 1, 0.8, 0.004, 100), atol=1e-5, rtol=1e-2)


def reference_logits(module, images, prompts):
    return slow_transport_logits(module, images, prompts, lambda cost: plan_of_pot(cost, module.mass, module.epsilon))


def test_loss_and_gradients(clip, images):
    module = make(clip, iterations=400)
    prompts = [module.global_prompt, module.local_prompt]
    loss = module.training_step((images, LABELS), 0)
    logits = reference_logits(module, images, prompts)
    expected = sum(torch.logsumexp(row, 0) - row[label] for row, label in zip(logits, LABELS, strict=True)) / 3
    assert_same(loss, expected, prompts)


def test_without_the_local_prompt_the_global_one_takes_all(clip, images):
    module = make(clip, iterations=400)
    with module.shared_part_alone():
        alone = module(images)
    expected = reference_logits(module, images, [module.global_prompt])
    differences = alone.double() - expected
    torch.testing.assert_close(differences, differences[:, :1].expand(-1, 3), atol=1e-4, rtol=0)
    assert not torch.allclose(alone, module(images), atol=1e-3)
