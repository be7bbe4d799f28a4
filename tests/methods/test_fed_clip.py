"""FedCLIP: its adapter and losses, image by image from the paper's equations."""

import pytest
import torch

from fedvlp import FedCLIP
from tests.helpers.slow import assert_same, cosine, slow_cross_entropy, spread

CLASSES = ["red circle", "star", "big_square"]
LABELS = torch.tensor([2, 0, 1, 2, 0])


@pytest.fixture
def method(clip):
    """Create a method with larger weights than at initialization, so that the adapter's outputs differ."""
    torch.manual_seed(3)
    module = FedCLIP(CLASSES, clip)
    spread(module.trainable_by_name().values(), 0.4)
    return module


def slow_adapted(weights, feature):
    """Apply g to one image's feature, with the paper's product element by element."""
    hidden = torch.stack([torch.tanh(row @ feature + bias) for row, bias in zip(*weights[:2], strict=True)])
    powers = [torch.exp(row @ hidden + bias) for row, bias in zip(*weights[2:], strict=True)]
    total = sum(powers)
    return torch.stack([power / total * element for power, element in zip(powers, feature, strict=True)])


def slow_contrast(adapted, texts, scale):
    """Compute (l(S, [1..B]) + l(S^T, [1..B])) / 2, where l is the mean of -log softmax on the diagonal."""
    count = len(adapted)
    total = 0.0
    for i in range(count):
        row = [torch.exp(scale * cosine(adapted[i], texts[j])) for j in range(count)]
        column = [torch.exp(scale * cosine(adapted[j], texts[i])) for j in range(count)]
        total = total - torch.log(row[i] / sum(row)) - torch.log(column[i] / sum(column))
    return total / (2 * count)


@pytest.fixture
def reference(method, images):
    """Copy the weights in double precision, and compute the adapted features and the classes' texts."""
    weights = [value.detach().double().requires_grad_() for value in method.adapter.parameters()]
    features = method.clip.encode_image(images).double()
    adapted = [slow_adapted(weights, feature) for feature in features]
    names = [name.replace("_", " ") for name in CLASSES]
    ids = method.clip.tokenizer([f"a picture of a {name}" for name in names])
    return weights, adapted, method.clip.encode_text(ids).double()


@pytest.mark.parametrize("loss", ["contrastive", "cross_entropy"])
def test_losses_and_gradients_match_the_paper(method, images, reference, loss):
    weights, adapted, texts = reference
    if loss == "contrastive":
        expected = slow_contrast(adapted, texts[LABELS], method.clip.logit_scale)
    else:
        expected = slow_cross_entropy(method.clip, adapted, texts, LABELS)
    method.loss_name = loss
    found = method.training_step((images, LABELS), 0)
    slow = assert_same(found, expected, list(method.adapter.parameters()), weights)
    assert min(gradient.abs().max() for gradient in slow) > 1e-5
