"""ADAPT: its two cross-entropies, token by token, and the same predictions as Fed-DPT."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from fedvlp import ADAPT, FedDPT
from tests.helpers.slow import CLASSES, begin, cosine

DOMAINS = ["ink", "paint", "photo"]
LABELS = torch.tensor([0, 1, 2, 1])


@pytest.fixture
def make(clip):
    def make(domain=None, **options):
        torch.manual_seed(0)
        module = ADAPT(CLASSES, options.pop("domains", DOMAINS), clip, prompt_length=5, **options)
        generator = torch.Generator().manual_seed(2)
        for _, value in sorted(module.state_dict().items()):
            value.copy_(torch.randn(value.shape, generator=generator) * 0.5)
        if domain is not None:
            begin(module, domain, domain=domain)
        return module

    return make


def parts(module, images):
    features = module.features(images)
    return {name: getattr(features, name).detach().double().numpy() for name in ("image", "text", "scores", "tokens")}


def class_loss(module, seen):
    losses = []
    for i, label in enumerate(LABELS):
        w = np.exp(log_softmax(seen["scores"][i] / 0.1))
        mixed = np.einsum("k,kcd->cd", w, seen["text"])
        logits = np.array([module.clip.logit_scale * cosine(seen["image"][i], row) for row in mixed])
        losses.append(-log_softmax(logits)[label])
    return np.mean(losses)


def test_token_loss_pairs_each_token_with_its_prompt(make, images):
    """First reading of the paper: token j is closest to prompt j for the image's class."""
    module = make(1, domain_weight=0.3)
    seen = parts(module, images)
    domain_losses = []
    for i, label in enumerate(LABELS):
        for j in range(3):
            row = [module.clip.logit_scale * cosine(seen["tokens"][i, j], seen["text"][k, label]) for k in range(3)]
            domain_losses.append(-log_softmax(np.array(row))[j])
    expected = class_loss(module, seen) + 0.3 * np.mean(domain_losses)
    assert module.training_step((images, LABELS), 0).item() == pytest.approx(expected, rel=1e-3)


def test_attention_loss_classifies_the_clients_domain(make, images):
    module = make(2, domain_loss="attention", domain_weight=2.0)
    seen = parts(module, images)
    domain_loss = np.mean([-log_softmax(seen["scores"][i] / 0.1)[2] for i in range(4)])
    expected = class_loss(module, seen) + 2 * domain_loss
    assert module.training_step((images, LABELS), 0).item() == pytest.approx(expected, rel=1e-3)


def test_it_predicts_like_fed_dpt(make, images, clip):
    module = make()
    fed_dpt = FedDPT(CLASSES, DOMAINS, clip, prompt_length=5)
    fed_dpt.load_state(module.state_dict())
    assert torch.equal(module(images), fed_dpt(images))
