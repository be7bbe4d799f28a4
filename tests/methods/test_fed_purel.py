"""FedPuReL: both phases image by image, temperatures that match entropies, and independence of the classes' order."""

import itertools
import math

import pytest
import torch
from scipy.optimize import brentq

from fedvlp import FedPuReL
from fedvlp.core.state import Client, ServerState
from fedvlp.methods.fed_med_clip import entropies
from fedvlp.methods.fed_purel import matched_temperatures
from tests.helpers.slow import CLASSES, assert_step, begin, slow_cross_entropy, slow_logits, slow_texts, spread


def make(clip, classes=CLASSES, **options):
    torch.manual_seed(3)
    module = FedPuReL(classes, clip, prompt_length=4, **options)
    spread([module.global_prompt, module.local_prompt], 0.3)
    return module


def slow_entropy(logits, temperature=1.0):
    weights = [math.exp((value - max(logits)) / temperature) for value in logits]
    shares = [weight / sum(weights) for weight in weights]
    return -sum(share * math.log(share) for share in shares if share > 0)


def slow_soft_logits(logits, target):
    """Divide logits by the temperature at which their entropy is the target."""
    values = logits.tolist()
    return logits / brentq(lambda temperature: slow_entropy(values, temperature) - target, 0.05, 20, xtol=1e-9)


def slow_terms(module, prompt, images, labels):
    """Compute L_ce and L_kl of the shared prompt."""
    known = [module.clip.encode_text(module.clip.tokenizer([f"a photo of a {name}."]))[0] for name in CLASSES]
    texts = slow_texts(module.clip, prompt)
    divergence = 0
    for feature in module.clip.encode_image(images):
        teacher, student = (slow_logits(module.clip, feature, each) for each in (known, texts))
        target = (slow_entropy(teacher.tolist()) + slow_entropy(student.tolist())) / 2
        p, q = (slow_soft_logits(each, target).log_softmax(0) for each in (teacher, student))
        divergence = divergence + sum(a.exp().detach() * (a.detach() - b) for a, b in zip(p, q, strict=True))
    features = module.clip.encode_image(images)
    return slow_cross_entropy(module.clip, features, texts, labels), divergence / len(images)


@pytest.mark.parametrize("agrees", [True, False])
def test_a_step_never_opposes_the_softened_teacher(clip, images, agrees):
    module = make(clip)
    prompt = module.global_prompt.detach().clone().requires_grad_()
    features = clip.encode_image(images)
    (general,) = torch.autograd.grad(slow_terms(module, prompt, images, torch.zeros(4).long())[1], prompt)
    # The first labels with a gradient along the divergence's, or against it.
    for labels in map(torch.tensor, itertools.product(range(3), repeat=4)):
        loss = torch.nn.functional.cross_entropy(module.logits(features, prompt), labels)
        if ((torch.autograd.grad(loss, prompt)[0] * general).sum() > 0) == agrees:
            break
    value, divergence = slow_terms(module, prompt, images, labels)
    (domain,) = torch.autograd.grad(value, prompt)
    product = sum(a * b for a, b in zip(domain.flatten(), general.flatten(), strict=True))
    assert (product > 0) == agrees
    expected = domain if agrees else domain - product / general.square().sum() * general
    begin(module, 0, phase=0)
    loss = module.training_step((images, labels), 0)
    (found,) = torch.autograd.grad(loss, module.global_prompt)
    assert loss.item() == pytest.approx(value.item(), rel=1e-5)
    assert module.logged_means()["kl"] == pytest.approx(divergence.item(), rel=1e-4)
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


def test_the_residual_is_trained_on_its_own_and_on_the_frozen_shared_logits(clip, images):
    module = make(clip, residual_weight=0.7)
    labels = torch.tensor([2, 0, 1, 2])
    own, shared = (slow_texts(clip, prompt) for prompt in (module.local_prompt, module.global_prompt.detach()))
    features = clip.encode_image(images)
    loss = 0.7 * slow_cross_entropy(clip, features, own, labels)
    for feature, label in zip(features, labels.tolist(), strict=True):
        logits = slow_logits(clip, feature, own) + slow_logits(clip, feature, shared)
        loss = loss - 0.3 * logits.log_softmax(0)[label] / len(labels)
    begin(module, 0, phase=1)
    assert_step(module, images, labels, loss)


@torch.no_grad()
def test_clients_add_both_logits_and_other_domains_have_only_the_shared_ones(clip, images):
    module = make(clip)
    features = clip.encode_image(images)
    shared, own = (module.logits(features, prompt) for prompt in (module.global_prompt, module.local_prompt))
    torch.testing.assert_close(module(images), shared + own)
    with module.shared_part_only():
        torch.testing.assert_close(module(images), shared)
    begin(module, 0, phase=0)
    torch.testing.assert_close(module.local_logits(images), shared)


def test_the_order_of_classes_does_not_matter(clip, images):
    labels = torch.tensor([2, 0, 1, 2])
    steps = []
    for order in ([0, 1, 2], [2, 0, 1]):
        module = make(clip, [CLASSES[index] for index in order])
        loss = module.training_step((images, torch.tensor([order.index(label) for label in labels.tolist()])), 0)
        steps.append([loss, *torch.autograd.grad(loss, [module.global_prompt, module.local_prompt])])
    for one, other in zip(*steps, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_temperatures_match_entropies_within_their_range():
    logits = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)) * torch.logspace(-1, 1.2, 50)[:, None]
    target = torch.linspace(0.1, 1.9, 50)
    temperatures = matched_temperatures(logits, target)
    inside = (temperatures[:, 0] > 0.051) & (temperatures[:, 0] < 19.9)
    assert inside.sum() > 20
    torch.testing.assert_close(entropies(logits / temperatures)[inside], target[inside], atol=1e-4, rtol=1e-4)
    assert matched_temperatures(torch.zeros(1, 3), torch.tensor([0.5])).item() == pytest.approx(0.05)


def test_the_second_phase_receives_the_average_and_sends_nothing(clip):
    _, phase = make(clip).configure_phases()
    server = ServerState.start({"global_prompt": torch.tensor([3.0])})
    assert phase.broadcast(server, Client(0, 0, 4)) == server.shared
    assert phase.upload == ()
    assert phase.strategy.aggregate(server, []) is server
