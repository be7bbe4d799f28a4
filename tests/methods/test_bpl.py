"""BPL: loss and gradients draw by draw, and deterministic predictions."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from fedvlp import BPL
from tests.helpers.slow import CLASSES, assert_step, slow_logits, slow_texts, unit

LABELS = torch.tensor([2, 0, 1, 2])
KINDS = pytest.mark.parametrize("conditional", [False, True])


def make(clip, conditional, **options):
    torch.manual_seed(5)
    module = BPL(CLASSES, clip, conditional=conditional, **options)
    if not conditional:
        with torch.no_grad():
            module.mean.normal_(std=0.3)
    return module


def slow_posterior(module, feature):
    """Compute the posterior's mean and log variance, with the perceptrons by hand."""
    if module.networks is None:
        return module.mean, module.log_variance
    found = []
    for name in ("mean", "log_variance"):
        hidden = unit(feature)
        for index in (0, 2, 4):
            layer = module.networks[name][index]
            hidden = layer.weight @ hidden + layer.bias
            if index < 4:
                hidden = torch.where(hidden > 0, hidden, hidden.exp() - 1)
        found.append(hidden)
    return found


def slow_terms(module, feature, noise):
    """Compute one image's divergence and its probabilities for each draw, one class at a time."""
    mean, log_variance = slow_posterior(module, feature)
    deviation = log_variance.exp().sqrt()
    probabilities = []
    for drawn in noise:
        moved = torch.stack([vector + mean + deviation * drawn for vector in module.prompt])
        probabilities.append(slow_logits(module.clip, feature, slow_texts(module.clip, moved)).softmax(0))
    numbers = kl_divergence(Normal(mean, deviation), Normal(torch.zeros_like(mean), torch.ones_like(mean)))
    return torch.stack(probabilities), numbers.mean()


def draws(module, seed):
    """Draw a training step's noise, separately for each image if the posterior is conditional."""
    torch.manual_seed(seed)
    if module.networks is None:
        return [torch.randn(module.noise.shape)] * len(LABELS)
    return torch.randn(len(LABELS), *module.noise.shape)


@pytest.mark.parametrize(("conditional", "kl_weight"), [(False, 0.001), (True, 2.0)])
def test_loss_and_gradients_match_the_equations(clip, images, conditional, kl_weight):
    module = make(clip, conditional, samples=2, kl_weight=kl_weight)
    expected = 0
    features = clip.encode_image(images)
    for feature, label, noise in zip(features, LABELS.tolist(), draws(module, 9), strict=True):
        probabilities, divergence = slow_terms(module, feature, noise)
        expected = expected + (kl_weight * divergence - probabilities.mean(0)[label].log()) / len(LABELS)
    torch.manual_seed(9)
    assert_step(module, images, LABELS, expected)


@KINDS
def test_predictions_depend_on_neither_batch_nor_seed(clip, images, conditional):
    """Also with as many images in the batch as vectors in the prompt."""
    module = make(clip, conditional, samples=2)
    features = clip.encode_image(images)
    expected = [slow_terms(module, feature, module.noise)[0].mean(0) for feature in features]
    with torch.no_grad():
        torch.testing.assert_close(module(images).exp(), torch.stack(expected), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(module(images[1:2]), module(images)[1:2], atol=1e-4, rtol=1e-5)
        torch.manual_seed(77)
        other = BPL(CLASSES, clip, conditional=conditional, samples=2)
        other.load_state_dict(module.state_dict())
        assert torch.equal(other(images), module(images))
        module.prompt.normal_()
        assert not torch.allclose(other(images), module(images), atol=1e-2)
