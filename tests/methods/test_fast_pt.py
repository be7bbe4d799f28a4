"""FaST-PT: losses and gradients of each phase image by image, and the mixture of domain prompts."""

import pytest
import torch

from fedvlp import FaSTPT
from fedvlp.clip import zero_shot_text_features
from fedvlp.core.protocols import DOMAIN
from tests.helpers.slow import (
    CLASSES,
    assert_step,
    begin,
    cosine,
    slow_cross_entropy,
    slow_logits,
    slow_texts,
    spread,
    unit,
)

DOMAINS = ["ink", "oil_paint", "photo"]
LABELS = torch.tensor([2, 0, 1, 2])
L = 2
OWN = 1  # the client's domain
OTHERS = [0, 2]


@pytest.fixture
def method(clip):
    torch.manual_seed(5)
    module = FaSTPT(CLASSES, DOMAINS, clip, prompt_length=L, style_weight=0.3)
    spread((module.global_prompt, module.domain_prompts, *module.domain_classifier.parameters()), 0.3)
    return module


@pytest.fixture
def inputs(method, images):
    return {**method.precompute(images), DOMAIN: torch.full((len(LABELS),), OWN)}


def slow_words(clip, template):
    return zero_shot_text_features(clip, CLASSES, template)


def slow_moved(method, feature, domain):
    """Compute Q_ij of one image."""
    first, _, second = method.transforms
    hidden = (feature @ first.weight[domain] + first.bias[domain]).clamp_min(0)
    return hidden @ second.weight[domain] + second.bias[domain]


def slow_style_loss(method, features):
    clip = method.clip
    names = slow_words(clip, "{}")
    own = slow_words(clip, "a oil paint of a {}")
    others = {0: slow_words(clip, "a ink of a {}"), 2: slow_words(clip, "a photo of a {}")}
    total = 0
    for feature, label in zip(features, LABELS.tolist(), strict=True):
        for domain in OTHERS:
            moved = slow_moved(method, unit(feature), domain)
            turned = 1 - cosine(moved - unit(feature), others[domain][label] - own[label])
            total = total + 0.3 * turned + 0.7 * -slow_logits(clip, moved, names).log_softmax(0)[label]
    return total / len(LABELS) / len(OTHERS)


def slow_global_loss(method, features):
    texts = slow_texts(method.clip, method.global_prompt)
    total = 0
    for feature, label in zip(features, LABELS.tolist(), strict=True):
        for domain in range(len(DOMAINS)):
            seen = unit(feature) if domain == OWN else slow_moved(method, unit(feature), domain)
            total = total - slow_logits(method.clip, seen, texts).log_softmax(0)[label]
            total = total - method.domain_classifier(unit(seen)).log_softmax(0)[domain]
    return total / len(LABELS) / len(DOMAINS)


def slow_domain_loss(method, features):
    shared = method.global_prompt.detach()
    own = method.domain_prompts[OWN]
    total = slow_cross_entropy(method.clip, features, slow_texts(method.clip, torch.cat([shared, own])), LABELS)
    own_texts = slow_texts(method.clip, own)
    words = slow_words(method.clip, "a oil paint of a {}")
    to_words = sum(cosine(one, other) for one, other in zip(own_texts, words, strict=True)) / len(CLASSES)
    to_shared = sum(map(cosine, own_texts, slow_texts(method.clip, shared))) / len(CLASSES)
    return total - torch.log(to_words.exp() / (to_words.exp() + to_shared.exp()))


@pytest.mark.parametrize(
    ("phase", "trained", "slow_loss"),
    [
        (0, ["transforms"], slow_style_loss),
        (1, ["global_prompt", "domain_classifier"], slow_global_loss),
        (2, ["domain_prompts"], slow_domain_loss),
    ],
)
def test_losses_and_gradients_match_the_equations(method, inputs, phase, trained, slow_loss):
    begin(method, 0, phase, domain=OWN)
    assert {name.partition(".")[0] for name in method.trainable_by_name()} == set(trained)
    assert_step(method, inputs, LABELS, slow_loss(method, inputs["features"]))


def test_each_image_is_classified_with_its_own_mixture(method, images):
    features = method.clip.encode_image(images)
    expected = []
    for feature in features:
        weights = method.domain_classifier(unit(feature)).softmax(0)
        assert weights.max() - weights.min() > 0.05
        mixed = sum(weight * prompt for weight, prompt in zip(weights, method.domain_prompts, strict=True))
        texts = slow_texts(method.clip, torch.cat([method.global_prompt, mixed]))
        expected.append(slow_logits(method.clip, feature, texts))
    torch.testing.assert_close(method(images), torch.stack(expected), atol=1e-3, rtol=1e-4)


def test_each_phase_has_its_own_learning_rates(method):
    begin(method, 0, 0, domain=OWN)
    style = method.configure_optimizers()
    assert (type(style), style.defaults["lr"], style.defaults["weight_decay"]) == (torch.optim.Adam, 0.001, 0.05)
    begin(method, 0, 1, domain=OWN)
    assert [group["lr"] for group in method.configure_optimizers().param_groups] == [0.005, 0.01]


def test_a_client_uploads_only_its_domains_prompt(method):
    begin(method, 0, 2, domain=OWN)
    assert torch.equal(method.upload_state()["domain_prompts"], method.domain_prompts[OWN])
