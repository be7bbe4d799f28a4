"""Fed-DPT: its equations, written out image by image and step by step, and its limit cases."""

import numpy as np
import pytest
import torch

from fedvlp import FedDPT
from fedvlp.clip import PromptedImageEncoder, zero_shot_text_features
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client, ClientUpdate, ServerState
from fedvlp.methods.fed_dpt import PerDomainPrompts
from tests.helpers.slow import CLASSES, plain_encoder

DOMAINS = ["ink", "paint", "photo"]


def far_from_zero(module):
    """Set prompts and copies to different large values, so that all of them affect the result."""
    generator = torch.Generator().manual_seed(2)
    state = module.state_dict()
    for name in sorted(state):
        state[name].copy_(torch.randn(state[name].shape, generator=generator) * 0.5)
    return module


@pytest.fixture
def fed_dpt(clip):
    torch.manual_seed(0)
    return far_from_zero(FedDPT(CLASSES, DOMAINS, clip, prompt_length=5))


def begin(module, domain, round=0):
    module.start_client(RoundContext(round, module.configure_phases()[0], Client(domain, domain, 10)))
    return module


def reference_tower(clip, image, tokens):
    """Compute f_V and the scores <q_cls, k_j> of one image."""
    found = PromptedImageEncoder(clip)(image[None], tokens[None])
    return found.features[0].detach().numpy(), found.scores[0].detach().numpy()


def reference_cosines(module, images, text_prompts, tokens):
    """Compute w and cos(f_V, f_T(c)) of every image and class, by Eqs. 3 to 6."""
    plain = plain_encoder(module.clip, CLASSES, prompt_length=5)
    texts = [plain(prompt).detach().numpy() for prompt in text_prompts]
    weights = []
    cosines = []
    for image in images:
        feature, scores = reference_tower(module.clip, image, tokens)
        powers = np.exp((scores - scores.max()) / 0.1)
        w = powers / powers.sum()
        row = []
        for c in range(len(CLASSES)):
            mixed = sum(w[k] * texts[k][c] / np.linalg.norm(texts[k][c]) for k in range(len(texts)))
            row.append(feature @ mixed / np.linalg.norm(feature) / np.linalg.norm(mixed))
        weights.append(w)
        cosines.append(row)
    return np.array(weights), np.array(cosines)


def test_weights_and_logits_match_the_paper(fed_dpt, images):
    text = fed_dpt.dual.text.shared.detach()
    visual = fed_dpt.dual.visual.shared.detach()
    weights, cosines = reference_cosines(fed_dpt, images, text, visual)
    features = fed_dpt.features(images)
    assert 0.01 < weights.max(1).min() < 0.999
    assert np.allclose(features.weights.detach().numpy(), weights, atol=1e-4)
    assert np.allclose(fed_dpt(images).detach().numpy(), fed_dpt.clip.logit_scale * cosines, atol=2e-3)


def test_a_clients_loss_uses_its_own_prompt_and_copies_of_the_others(fed_dpt, images):
    """Eq. 9: client 1 uses the server's version of its own prompt, and its copies of the other prompts."""
    begin(fed_dpt, 1)
    stack = fed_dpt.dual.text
    seen = [stack.copies[0], stack.shared[1].detach(), stack.copies[2]]
    _, cosines = reference_cosines(fed_dpt, images, seen, fed_dpt.dual.visual.shared.detach())
    labels = torch.tensor([0, 1, 2, 1])
    loss = fed_dpt.training_step((images, labels), 0)
    assert loss.item() == pytest.approx(-cosines[np.arange(4), labels.numpy()].mean(), abs=1e-5)


def test_the_order_of_domains_has_no_effect(fed_dpt, images):
    order = [2, 0, 1]
    other = FedDPT(CLASSES, [DOMAINS[k] for k in order], fed_dpt.clip, prompt_length=5)
    other.load_state({name: value[order] for name, value in fed_dpt.state_dict().items()})
    assert torch.allclose(other(images), fed_dpt(images), atol=1e-3)
    one = fed_dpt.features(images)
    two = other.features(images)
    assert torch.allclose(two.weights, one.weights[:, order], atol=1e-4)
    labels = torch.tensor([0, 1, 2, 1])
    begin(fed_dpt, 2).training_step((images, labels), 0).backward()
    begin(other, 0).training_step((images, labels), 0).backward()
    for name, parameter in fed_dpt.named_parameters():
        if parameter.grad is not None:
            assert torch.allclose(other.get_parameter(name).grad, parameter.grad[order], atol=1e-4)


def trained_upload(module, server, client):
    """Simulate training by adding the client's id + 1 to all parameters, and return the update."""
    module.load_state(server.shared)
    module.start_client(RoundContext(0, module.configure_phases()[0], client))
    with torch.no_grad():
        for parameter in (p for p in module.parameters() if p.requires_grad):
            parameter.add_(client.id + 1)
    return ClientUpdate(client, module.upload_state(), client.num_examples)


@pytest.mark.parametrize(
    ("options", "text", "visual"),
    [
        ({}, [1.0, 2.0], [1.5, 1.5]),
        ({"text_momentum": None}, [1.5, 1.5], [1.5, 1.5]),
        ({"visual_momentum": 0.99}, [1.0, 2.0], [1.0, 2.0]),
        ({"components": "agnostic"}, [1.5], [1.5, 1.5]),
    ],
    ids=["default", "train all", "split by domain", "agnostic"],
)
def test_momentum_and_components_decide_which_prompts_are_averaged(clip, options, text, visual):
    """Tables 5, 6a and 6b, with clients of two domains that add 1 and 2 to their tensors."""
    module = FedDPT(CLASSES, ["ink", "paint"], clip, prompt_length=2, **options)
    server = ServerState.start(module.shared_state())
    updates = [trained_upload(module, server, Client(domain, domain, 10)) for domain in range(2)]
    after = module.configure_phases()[0].strategy.aggregate(server, updates).shared
    moved = {name: (after[name] - value).flatten(1).mean(1).tolist() for name, value in server.shared.items()}
    assert moved["dual.text.shared"] == pytest.approx(text, abs=1e-5)
    assert moved["dual.visual.shared"] == pytest.approx(visual, abs=1e-5)


def test_image_tokens_without_text_prompts_use_the_template(clip, images):
    module = far_from_zero(FedDPT(CLASSES, DOMAINS, clip, components="visual"))
    assert list(module.state_dict()) == ["dual.visual.shared"]
    text = zero_shot_text_features(clip, CLASSES).numpy()
    for image, logits in zip(images, module(images).detach().numpy(), strict=True):
        feature, _ = reference_tower(clip, image, module.dual.visual.shared.detach())
        assert np.allclose(logits, clip.logit_scale * text @ feature / np.linalg.norm(feature), atol=2e-3)


def test_copies_move_towards_the_rounds_broadcast():
    """Eq. 8 over two steps and a second round, with one number per prompt and alpha = 0.75."""
    stack = PerDomainPrompts(torch.zeros(2, 1), momentum=0.75)
    with torch.no_grad():
        stack.shared.copy_(torch.tensor([[8.0], [4.0]]))
    stack.start_client()
    with torch.no_grad():
        stack.shared[0] = 100.0  # an optimizer step on the own prompt
        stack.shared[1] = -7.0  # weight decay changes the whole tensor, but must not change the copies
    stack.follow(0)
    assert stack.copies.flatten().tolist() == [100.0, 1.0]  # 0.75 * 0 + 0.25 * 4
    stack.follow(0)
    assert stack.copies.flatten().tolist() == [100.0, 1.75]
    assert [prompt.item() for prompt in stack(0)] == [100.0, 1.75]
    assert [prompt.item() for prompt in stack(None)] == [100.0, -7.0]
    with torch.no_grad():
        stack.shared.copy_(torch.tensor([[1.0], [9.0]]))  # the next broadcast leaves the copies unchanged
    stack.start_client()
    assert [prompt.item() for prompt in stack(0)] == [1.0, 1.75]
    stack.follow(0)
    assert [prompt.item() for prompt in stack(0)] == [1.0, 3.5625]  # 0.75 * 1.75 + 0.25 * 9
