"""FedADG: three losses, each with gradients only for its own network, and the personal discriminator."""

import pytest
import torch

from fedvlp import FedADG
from tests.helpers.slow import CLASSES, slow_logits

LABELS = torch.tensor([2, 0, 1, 2])


def make(clip, **options):
    torch.manual_seed(5)
    return FedADG(CLASSES, clip, generator_width=20, **options)


def slow_score(module, feature, label):
    """Compute D of one feature: scale to length sqrt(d), project, append the class, two layers, sigmoid."""
    scaled = feature / feature.square().sum().sqrt() * len(feature) ** 0.5
    row = torch.cat([module.discriminator.projection.weight @ scaled, 0.7 * torch.eye(3)[label]])
    first, last = module.discriminator.layers[0], module.discriminator.layers[2]
    hidden = first.weight @ row + first.bias
    hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
    return 1 / (1 + (-(last.weight[0] @ hidden + last.bias[0])).exp())


def slow_losses(module, images, noise, weight):
    """Compute the losses of tower, discriminator and generator like the script for PACS, image by image."""
    first, last = module.generator[0], module.generator[2]
    tower, discriminator, generator = [], [], []
    for image, drawn, label in zip(images, noise, LABELS.tolist(), strict=True):
        feature = module.image_features(image[None])[0]
        hidden = first.weight @ torch.cat([drawn, 0.7 * torch.eye(3)[label]]) + first.bias
        reference = last.weight @ torch.where(hidden > 0, hidden, 0.01 * hidden) + last.bias
        cross_entropy = -slow_logits(module.clip, feature, module.text_features).log_softmax(0)[label]
        real, made = slow_score(module, feature, label), slow_score(module, reference, label)
        tower.append(weight * cross_entropy + (1 - weight) * (1 - real) ** 2)
        discriminator.append((1 - made) ** 2 + real**2)
        generator.append(made**2)
    return [sum(losses) / 4 for losses in (tower, discriminator, generator)]


@pytest.mark.parametrize("weight", [0.85, 0.1])
def test_each_network_gets_the_gradient_of_its_own_loss(clip, images, weight):
    module = make(clip, class_weight=weight)
    torch.manual_seed(9)
    expected = slow_losses(module, images, torch.rand(4, clip.embed_dim), weight)
    torch.manual_seed(9)
    loss = module.training_step((images, LABELS), 0)
    loss.backward()
    assert loss.item() == pytest.approx(sum(expected).item(), rel=1e-5)
    for network, slow in zip((module.visual, module.discriminator, module.generator), expected, strict=True):
        parameters = list(network.parameters())
        gradients = torch.autograd.grad(slow, parameters, retain_graph=True)
        assert max(gradient.abs().max() for gradient in gradients) > 0
        for value, gradient in zip(parameters, gradients, strict=True):
            assert (value.grad - gradient).abs().max() < 1e-5 * max(gradient.abs().max(), 1.0)


def test_the_projection_has_length_1_and_the_discriminator_stays_on_its_client(clip):
    module = make(clip)
    assert module.discriminator.projection.weight.norm().item() == pytest.approx(1)
    (phase,) = module.configure_phases()
    assert (set(phase.train), set(phase.upload)) == ({"visual", "generator", "discriminator"}, {"visual", "generator"})
