"""Prompt aggregators against Eqs. 12 and 13 of PLAN, one client and one block at a time, and against PyTorch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedvlp.methods.plan.aggregators import AttentionOverClients, PromptAttention
from fedvlp.utils.errors import UserError

K = 3
J = 2
L = 5
WIDTH = 16


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.fixture
def prompts():
    return torch.randn(K, J, L, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def attention():
    """An aggregator after some training, so that no part of it is zero."""
    torch.manual_seed(0)
    module = PromptAttention(J, WIDTH, reduction=4)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return module


@pytest.fixture
def over_clients():
    torch.manual_seed(0)
    return AttentionOverClients(J, WIDTH, heads=4)


def perceptron(layers, block, vector):
    first, last = (layers[place] for place in (0, 2))
    hidden = vector @ first.weight[block].detach().numpy() + first.bias[block].detach().numpy()
    return np.maximum(hidden, 0) @ last.weight[block].detach().numpy() + last.bias[block].detach().numpy()


def test_attention_is_that_of_the_equations(attention, prompts):
    expected = np.zeros((J, L, WIDTH))
    for block in range(J):
        scores = []
        for k in range(K):  # Eq. 12
            mapped = np.mean([perceptron(attention.phi, block, token.numpy()) for token in prompts[k, block]], axis=0)
            scores.append(attention.query[block].detach().numpy() @ mapped / np.sqrt(WIDTH))
        weights = np.exp(scores) / np.exp(scores).sum()
        assert weights.max() - weights.min() > 0.05
        for k in range(K):  # Eq. 13
            for place, token in enumerate(prompts[k, block].numpy()):
                expected[block, place] += weights[k] * (token + perceptron(attention.psi, block, token))
    assert np.allclose(attention(prompts).detach().numpy(), expected, atol=1e-5)
    assert torch.allclose(attention.weights(prompts).sum(0), torch.ones(J))


def test_over_clients_is_pytorchs_attention_with_clients_as_the_sequence(over_clients, prompts):
    """As the released code builds it: a MultiheadAttention for each block, tokens as the batch, both norms shared."""
    mixed = []
    for block in range(J):
        reference = nn.MultiheadAttention(WIDTH, 4)
        with torch.no_grad():
            reference.in_proj_weight.copy_(over_clients.project_in.weight[block].T)
            reference.in_proj_bias.copy_(over_clients.project_in.bias[block])
            reference.out_proj.weight.copy_(over_clients.project_out.weight[block].T)
            reference.out_proj.bias.copy_(over_clients.project_out.bias[block])
        sequence = prompts[:, block]  # [K, L, width]
        hidden = over_clients.attention_norm(sequence + reference(sequence, sequence, sequence)[0])
        wide = over_clients.perceptron[0]
        narrow = over_clients.perceptron[2]
        inner = (hidden @ wide.weight[block] + wide.bias[block]).relu() @ narrow.weight[block] + narrow.bias[block]
        mixed.append(over_clients.perceptron_norm(hidden + inner).mean(0))
    torch.testing.assert_close(over_clients(prompts), torch.stack(mixed), atol=1e-5, rtol=1e-4)


def test_over_clients_starts_like_pytorchs_layers():
    """Largest and mean size of what each part starts from, against layers as the released code makes them."""
    torch.manual_seed(0)
    width = 64
    ours = AttentionOverClients(4, width)
    theirs = [nn.MultiheadAttention(width, 8) for _ in range(4)]
    layers = [(nn.Linear(width, 2 * width), nn.Linear(2 * width, width)) for _ in range(4)]
    pairs = [
        (ours.project_in.weight, [layer.in_proj_weight for layer in theirs]),
        (ours.project_in.bias, [layer.in_proj_bias for layer in theirs]),
        (ours.project_out.weight, [layer.out_proj.weight for layer in theirs]),
        (ours.project_out.bias, [layer.out_proj.bias for layer in theirs]),
    ]
    for place, number in ((0, 0), (2, 1)):
        pairs.append((ours.perceptron[place].weight, [pair[number].weight for pair in layers]))
        pairs.append((ours.perceptron[place].bias, [pair[number].bias for pair in layers]))
    for mine, others in pairs:
        sizes = mine.detach().abs()
        expected = torch.stack(others).detach().abs()
        assert sizes.numel() == expected.numel()
        torch.testing.assert_close(sizes.max(), expected.max(), rtol=0.03, atol=0)
        torch.testing.assert_close(sizes.mean(), expected.mean(), rtol=0.12, atol=0)


@pytest.mark.parametrize("kind", ["attention", "over_clients"])
def test_order_of_clients_changes_nothing(request, prompts, kind):
    module = request.getfixturevalue(kind)
    torch.testing.assert_close(module(prompts[[2, 0, 1]]), module(prompts), atol=1e-6, rtol=1e-5)


def test_without_query_and_residual_it_is_the_mean(prompts):
    module = PromptAttention(J, WIDTH, reduction=4)
    nn.init.zeros_(module.query)
    torch.testing.assert_close(module(prompts), prompts.mean(0))


def test_first_mixture_of_small_prompts_is_nearly_the_mean():
    torch.manual_seed(0)
    module = PromptAttention(12, 512, reduction=8)
    prompts = 0.02 * torch.randn(3, 12, 8, 512)
    assert (module.weights(prompts) - 1 / 3).abs().max() < 0.01
    assert (module(prompts) - prompts.mean(0)).norm() < 0.01 * prompts.mean(0).norm()


def test_one_client_has_all_the_weight(attention, prompts):
    alone = prompts[:1]
    assert torch.equal(attention.weights(alone), torch.ones(1, J))
    torch.testing.assert_close(attention(alone), (alone + attention.psi(alone))[0])


def test_equal_clients_are_as_one(attention, over_clients, prompts):
    same = prompts[:1].expand(4, -1, -1, -1)
    for module in (attention, over_clients):
        torch.testing.assert_close(module(same), module(prompts[:1]), atol=1e-5, rtol=1e-5)


def test_all_but_the_last_bias_of_phi_get_gradients(attention, prompts):
    attention(prompts).square().sum().backward()
    for name, parameter in attention.named_parameters():
        size = parameter.grad.abs().max()
        assert size < 1e-4 if name == "phi.2.bias" else size > 1e-2, name


def test_parameters_are_those_of_vit_b_16():
    assert count(PromptAttention(12, 512, 8)) + count(PromptAttention(12, 768, 8)) == 5_161_728
    assert count(PromptAttention(12, 512, 16)) + count(PromptAttention(12, 768, 16)) == 2_603_904
    assert count(AttentionOverClients(12, 512)) == 25_210_880
    assert count(AttentionOverClients(12, 768)) == 56_690_688


@pytest.mark.parametrize("kind", ["attention", "over_clients"])
def test_mixes_in_float32_under_autocast(request, prompts, kind):
    module = request.getfixturevalue(kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(prompts), module(prompts.clone()))
        found = module(prompts)
    assert torch.equal(found, module(prompts))


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="reduction"):
        PromptAttention(J, WIDTH, reduction=17)
    with pytest.raises(UserError, match="heads"):
        AttentionOverClients(J, WIDTH, heads=3)
