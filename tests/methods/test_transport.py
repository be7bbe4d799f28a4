"""FedOTP and PLOT: transport plans equal to POT's, losses patch by patch, and independence of order and batch."""

import numpy as np
import ot
import pytest
import torch
import torch.nn.functional as F

from fedvlp import PLOT, FedOTP
from fedvlp.methods.transport import transport_plan
from tests.helpers.slow import CLASSES, assert_step, spread

LABELS = torch.tensor([0, 2, 1])


def make(clip, kind, **options):
    torch.manual_seed(0)
    module = kind(CLASSES, clip, prompt_length=4, **options)
    spread(module.trainable_by_name().values(), 0.5)
    return module


def costs(*shape, seed=0):
    return 1.6 * torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def solve_with_pot(cost, mass, epsilon):
    """Solve with POT. Prompts share the mass equally, and no patch gives more than its part of 1.

    Without ``mass``, each patch gives its whole part.
    """
    prompts, patches = cost.shape
    has = np.full(patches, 1 / patches)
    takes = np.full(prompts, (mass or 1) / prompts)
    if mass is None:
        return ot.sinkhorn(takes, has, cost.numpy(), epsilon, numItermax=20_000, stopThr=1e-13)
    return ot.partial.entropic_partial_wasserstein(takes, has, cost.numpy(), epsilon, m=mass * (1 - 1e-12))


@pytest.mark.parametrize(("mass", "epsilon"), [(0.55, 0.3), (1.0, 0.2), (None, 0.1)])
def test_the_plan_equals_pots_plan(mass, epsilon):
    cost = costs(2, 2, 11)
    plan = transport_plan(cost, mass, epsilon, 1000)
    expected = torch.stack([torch.from_numpy(solve_with_pot(each, mass, epsilon)) for each in cost])
    torch.testing.assert_close(plan, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mass", [0.6, 1.0])
def test_the_plan_has_its_marginals(mass):
    """Each prompt gets exactly its share. No patch gives more than its part, and all of it if mass is 1."""
    plan = transport_plan(costs(4, 2, 9), mass, 0.05, 3000)
    assert (plan >= 0).all()
    torch.testing.assert_close(plan.sum(-1), torch.full((4, 2), mass / 2, dtype=plan.dtype))
    given = plan.sum(-2) * 9
    assert given.max() <= 1 + 1e-6
    assert (given.min() > 1 - 1e-6) == (mass == 1.0)


def test_large_costs_do_not_underflow():
    """A direct exp(-C / epsilon) would be zero everywhere in single precision."""
    cost = (1 + costs(2, 9)).float()
    plan = transport_plan(cost, 0.8, 0.004, 100)
    torch.testing.assert_close(plan.sum(-1), torch.full((2,), 0.4))
    torch.testing.assert_close(plan, transport_plan(cost - 1, 0.8, 0.004, 100), atol=1e-5, rtol=1e-2)


def slow_logits(module, images, prompts):
    """Compute (1 - <C, T>) / tau with the plan T of each image and class, and the cost C [N, M] by patch."""
    tower = module.clip.image
    options = module.transport.keywords
    encoded = [module.text(prompt) for prompt in prompts]
    rows = []
    for image in images:
        tokens = module.clip.model.visual.transformer(tower.embed(image[None]))[0]
        patches = [tower.project(token).detach() for token in tokens[1:]]
        row = []
        for label in range(len(CLASSES)):
            texts = [features[label] for features in encoded]
            cosines = torch.stack([torch.stack([F.cosine_similarity(g, h, dim=0) for g in patches]) for h in texts])
            cost = (1 - cosines).detach().double()
            plan = torch.from_numpy(solve_with_pot(cost, options["mass"], options["epsilon"]))
            row.append((1 - ((1 - cosines) * plan).sum()) * module.clip.logit_scale)
        rows.append(torch.stack(row))
    return torch.stack(rows)


@pytest.mark.parametrize("kind", [FedOTP, PLOT])
def test_loss_and_gradients_match_the_paper(clip, images, kind):
    module = make(clip, kind, iterations=400)
    prompts = [module.global_prompt, module.local_prompt] if kind is FedOTP else module.prompts
    logits = slow_logits(module, images, prompts)
    expected = sum(torch.logsumexp(row, 0) - row[label] for row, label in zip(logits, LABELS, strict=True)) / 3
    assert_step(module, images, LABELS, expected)


def test_without_the_local_prompt_the_global_prompt_gets_all_mass(clip, images):
    module = make(clip, FedOTP, iterations=400)
    with module.shared_part_only():
        global_only = module(images)
    differences = global_only.double() - slow_logits(module, images, [module.global_prompt])
    torch.testing.assert_close(differences, differences[:, :1].expand(-1, 3), atol=1e-4, rtol=0)
    assert not torch.allclose(global_only, module(images), atol=1e-3)


@torch.no_grad()
def test_logits_depend_on_neither_prompt_order_nor_batch(clip, images):
    module = make(clip, PLOT)
    logits = module(images)
    one_by_one = torch.cat([module(image[None]) for image in images])
    torch.testing.assert_close(one_by_one, logits, atol=1e-3, rtol=1e-4)
    module.prompts.copy_(module.prompts.flip(0).clone())
    torch.testing.assert_close(module(images), logits, atol=1e-3, rtol=1e-4)
