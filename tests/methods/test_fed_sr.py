"""FedSR's loss and gradients, image by image with the same draws."""

import torch

from fedvlp import FedSR
from tests.helpers.slow import CLASSES, assert_same, slow_logits

LABELS = torch.tensor([2, 0, 1, 2])


def make(clip, **options):
    """Create a method with random deviations and class parameters, as after training."""
    torch.manual_seed(5)
    module = FedSR(CLASSES, clip, **options)
    with torch.no_grad():
        module.deviation.weight.normal_(std=0.1)
        module.class_means.normal_()
        module.class_deviations.uniform_(-1, 1)
    return module


def slow_loss(module, images, noise, norm_weight, kl_weight):
    """Compute the paper's objective one image at a time, with the divergence from PyTorch's distributions."""
    losses = []
    for image, drawn, label in zip(images, noise, LABELS.tolist(), strict=True):
        mean = module.image_features(image[None])[0]
        deviation = (module.deviation.weight @ mean + module.deviation.bias).exp().log1p()
        feature = mean + deviation * drawn
        cross_entropy = -slow_logits(module.clip, feature, module.text_features).log_softmax(0)[label]
        reference = torch.distributions.Normal(
            module.class_means[label], (1 + module.class_deviations[label].exp()).log()
        )
        divergence = torch.distributions.kl_divergence(torch.distributions.Normal(mean, deviation), reference).sum()
        losses.append(cross_entropy + norm_weight * feature.square().sum().sqrt() + kl_weight * divergence)
    return sum(losses) / 4


def test_loss_and_gradients_match_the_paper(clip, images):
    module = make(clip, norm_weight=3.0, kl_weight=0.25)
    torch.manual_seed(9)
    expected = slow_loss(module, images, torch.randn(4, clip.embed_dim), 3.0, 0.25)
    torch.manual_seed(9)
    assert_same(module.training_step((images, LABELS), 0), expected, list(module.trainable_by_name().values()))
