"""PLAN: its equations, its two stages step by step, and its limit cases."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import nn

from fedvlp import PLAN
from fedvlp.clip import PromptedImageEncoder, zero_shot_text_features
from fedvlp.core.module import check_phases
from fedvlp.core.state import Client, ClientUpdate, ServerState
from fedvlp.methods.plan import AttentionOverClients, PromptAttention
from tests.helpers.slow import CLASSES, begin, cosine, plain_encoder, spread

LABELS = torch.tensor([0, 1, 2, 0])


def make(clip, **options):
    torch.manual_seed(0)
    module = PLAN(CLASSES, 3, clip, prompt_length=4, **options)
    with torch.no_grad():
        for prompts in [*module.pool.own.values(), *module.pool.globals.values()]:
            prompts.add_(0.5 * torch.randn_like(prompts))
        for stack in module.pool.clients.values():
            stack.copy_(0.5 * torch.randn_like(stack))
    return module.train()


@pytest.fixture
def plan(clip):
    return make(clip)


def test_local_logits_use_the_prompts_of_the_current_stage(plan, images):
    begin(plan, 1)
    torch.testing.assert_close(plan.local_logits(images), plan.prompted.logits(images, plan.pool.own))
    begin(plan, 1, 1)
    torch.testing.assert_close(plan.local_logits(images), plan.prompted.logits(images, plan.pool.aggregate()))


def probabilities(module, images, prompts):
    """Compute Eqs. 2-6, one image and one class at a time, with text sequences of the full context."""
    clip = module.clip
    text = plain_encoder(clip, CLASSES, prompt_length=4)
    words = text(prompts["text"][0], prompts["text"][1:]).detach().double().numpy()
    visual = PromptedImageEncoder(clip)
    features = [visual(image[None], prompts["visual"]).features[0].detach().double().numpy() for image in images]
    return np.array([softmax([clip.logit_scale * cosine(f, w) for w in words]) for f in features])


def stage_one_loss(local, reference, kl_weight):
    """Compute Eqs. 7, 9 and 10."""
    cross_entropy = -np.mean([np.log(row[label]) for row, label in zip(local, LABELS, strict=True)])
    divergence = np.mean([(q * np.log(q / p)).sum() for q, p in zip(reference, local, strict=True)])
    return cross_entropy + kl_weight * divergence


def test_probabilities_use_the_global_prompts(plan, images):
    assert np.allclose(plan(images).softmax(-1).detach(), probabilities(plan, images, plan.pool.globals), atol=1e-4)


@pytest.mark.parametrize("round", [0, 3])
def test_the_teacher_is_zero_shot_clip_and_then_the_global_prompts(clip, images, round):
    module = make(clip, kl_weight=0.7, templates=3)
    begin(module, 1, round=round)
    reference = probabilities(module, images, module.pool.globals)
    if round == 0:
        words = zero_shot_text_features(clip, CLASSES, 3).numpy()
        features = clip.encode_image(images).numpy()
        reference = np.array([softmax([clip.logit_scale * cosine(f, w) for w in words]) for f in features])
    expected = stage_one_loss(probabilities(module, images, module.pool.own), reference, 0.7)
    assert module.training_step((images, LABELS), 0).item() == pytest.approx(expected, rel=1e-3)


def test_the_second_stages_loss_is_the_cross_entropy_of_the_mixture(plan, images):
    begin(plan, 1, 1)
    mixed = {kind: plan.pool.aggregators[kind](plan.pool.clients[kind]) for kind in ("text", "visual")}
    local = probabilities(plan, images, mixed)
    expected = stage_one_loss(local, local, 0)
    assert plan.training_step((images, LABELS), 0).item() == pytest.approx(expected, rel=1e-3)


def test_the_server_aggregates_like_the_clients(plan):
    server = ServerState.start(plan.shared_state())
    first, second = check_phases(plan)
    client = Client(2, 2, 10)
    begin(plan, 2)
    server = first.aggregate(server, [ClientUpdate(client, plan.upload_state(), 10)])
    assert torch.equal(server.shared["pool.clients.text"][2], plan.pool.own["text"])
    assert torch.equal(server.shared["pool.clients.text"][1], plan.pool.clients["text"][1])
    begin(plan, 2, 1)
    plan.load_state(second.broadcast(server, client))
    server = second.aggregate(server, [ClientUpdate(client, plan.upload_state(), 10)])
    assert set(server.deployed) == {"pool.globals.text", "pool.globals.visual"}
    for kind, prompts in plan.pool.aggregate().items():
        torch.testing.assert_close(server.deployed[f"pool.globals.{kind}"], prompts)


def test_empty_slots_are_ignored(plan):
    full = {kind: stack.clone() for kind, stack in plan.pool.clients.items()}
    with torch.no_grad():
        for stack in plan.pool.clients.values():
            stack[1] = 0
    for kind, prompts in plan.pool.aggregate().items():
        torch.testing.assert_close(prompts, plan.pool.aggregators[kind](full[kind][[0, 2]]))


@pytest.mark.parametrize("kind", ["text", "visual"])
def test_without_an_aggregator_prompts_are_averaged(clip, kind):
    module = make(clip, **{f"aggregate_{kind}": False})
    torch.testing.assert_close(module.pool.aggregate()[kind], module.pool.clients[kind].mean(0))
    assert {name.split(".")[2] for name in module.state_dict() if "aggregators" in name} == {"text", "visual"} - {kind}


def test_without_aggregators_there_is_one_stage(clip):
    module = make(clip, aggregate_text=False, aggregate_visual=False)
    (phase,) = check_phases(module)
    begin(module, 1)
    update = ClientUpdate(Client(1, 1, 10), module.upload_state(), 10)
    server = phase.aggregate(ServerState.start(module.shared_state()), [update])
    expected = torch.stack([module.pool.clients["text"][0], module.pool.own["text"], module.pool.clients["text"][2]])
    torch.testing.assert_close(server.deployed["pool.globals.text"], expected.mean(0))


K = 3
J = 2
L = 5
WIDTH = 16


@pytest.fixture
def prompts():
    return torch.randn(K, J, L, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def attention():
    """Create an aggregator with random parameters, none of them zero."""
    torch.manual_seed(0)
    module = PromptAttention(J, WIDTH, reduction=4)
    spread(module.parameters(), 0.5)
    return module


@pytest.fixture
def over_clients():
    torch.manual_seed(0)
    return AttentionOverClients(J, WIDTH, heads=4)


def perceptron(layers, block, vector):
    first, last = (layers[index] for index in (0, 2))
    hidden = vector @ first.weight[block].detach().numpy() + first.bias[block].detach().numpy()
    return np.maximum(hidden, 0) @ last.weight[block].detach().numpy() + last.bias[block].detach().numpy()


def test_attention_matches_the_equations(attention, prompts):
    expected = np.zeros((J, L, WIDTH))
    for block in range(J):
        scores = []
        for k in range(K):  # Eq. 12
            mapped = np.mean([perceptron(attention.phi, block, token.numpy()) for token in prompts[k, block]], axis=0)
            scores.append(attention.query[block].detach().numpy() @ mapped / np.sqrt(WIDTH))
        weights = np.exp(scores) / np.exp(scores).sum()
        assert weights.max() - weights.min() > 0.05
        for k in range(K):  # Eq. 13
            for index, token in enumerate(prompts[k, block].numpy()):
                expected[block, index] += weights[k] * (token + perceptron(attention.psi, block, token))
    assert np.allclose(attention(prompts).detach().numpy(), expected, atol=1e-5)
    assert torch.allclose(attention.weights(prompts).sum(0), torch.ones(J))


def test_attention_over_clients_equals_pytorchs_with_clients_as_the_sequence(over_clients, prompts):
    """Like the released code: a MultiheadAttention per block, tokens as the batch, both norms shared."""
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
