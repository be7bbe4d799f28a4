"""FedMedCLIP: its masked layers, normalisation, loss and gradients, element by element."""

import pytest
import torch

from fedvlp import FedMedCLIP
from fedvlp.clip import zero_shot_text_features
from fedvlp.methods.fed_med_clip import BatchNorm, MaskedLinear
from tests.helpers.slow import assert_same, cosine, unit

CLASSES = ["red circle", "star", "big_square"]
LABELS = torch.tensor([2, 0, 1, 2])


@pytest.fixture
def method(clip):
    """Create a method with large weights, so that elements differ, and every third output clearly masked.

    Shifts keep a masked unit, which is constant over images, away from the kink of its ReLU.
    """
    torch.manual_seed(3)
    module = FedMedCLIP(CLASSES, clip, hidden_width=6, similarity_weight=0.7, temperature=0.5)
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, MaskedLinear):
                layer.weight.mul_(3)
                layer.threshold.fill_(-5)
                layer.threshold[1::3] = 5
            if isinstance(layer, BatchNorm):
                layer.bias.uniform_(0.1, 0.5)
        module.classifier[-1].threshold.fill_(-5)  # masks no class
    return module


def slow_linear(layer, vector):
    outputs = []
    for row, bias, threshold in zip(layer.weight, layer.bias, layer.threshold, strict=True):
        is_on = row.abs().sum() / len(row) - threshold > 0.01
        outputs.append(row @ vector + bias if is_on else bias)
    return torch.stack(outputs)


def slow_norm(numbers):
    """Normalise numbers to mean 0 and deviation 1."""
    mean = sum(numbers) / len(numbers)
    variance = sum((number - mean) ** 2 for number in numbers) / len(numbers)
    return [(number - mean) / (variance + 1e-5) ** 0.5 for number in numbers]


def slow_adapted(method, feature):
    first, _, _, second, _ = method.adapter
    hidden = torch.stack(slow_norm(list(slow_linear(first, feature)))).clamp_min(0)
    powers = slow_linear(second, hidden).exp()
    return powers / powers.sum() * feature


def slow_classifier(method, adapted):
    """Compute a batch's scores in training mode: each hidden unit is normalised over the images."""
    values = [unit(each) for each in adapted]
    for block in range(3):
        layer, norm = method.classifier[3 * block], method.classifier[3 * block + 1]
        columns = torch.stack([slow_linear(layer, value) for value in values]).T
        normal = [torch.stack(slow_norm(list(column))) for column in columns]
        scaled = [scale * column + shift for scale, column, shift in zip(norm.weight, normal, norm.bias, strict=True)]
        values = list(torch.stack(scaled).T.clamp_min(0))
    return [slow_linear(method.classifier[-1], value) for value in values]


def slow_entropy(scores):
    return -sum(chance * chance.log() for chance in scores.softmax(0))


def slow_share(adapter, classifier):
    return adapter / (adapter + classifier)


def slow_loss(method, features):
    scale = method.clip.logit_scale
    texts = zero_shot_text_features(method.clip, CLASSES, "a picture of a {}")
    adapted = [slow_adapted(method, feature) for feature in features]
    cosines = [torch.stack([cosine(each, text) for text in texts]) for each in adapted]
    own = slow_classifier(method, adapted)
    count = len(adapted)
    total = 0
    for i, label in enumerate(LABELS.tolist()):
        row = torch.stack([scale * cosines[i][other] for other in LABELS.tolist()])
        column = torch.stack([scale * other[label] for other in cosines])
        total = total - (row.log_softmax(0)[i] + column.log_softmax(0)[i]) / 2 / count
        total = total - own[i].log_softmax(0)[label] / count
    adapter_entropy = sum(slow_entropy(scale * each).item() for each in cosines) / count
    classifier_entropy = sum(slow_entropy(each).item() for each in own) / count
    share = slow_share(adapter_entropy, classifier_entropy)
    for c in range(len(CLASSES)):
        p = torch.stack([each[c] / 0.5 for each in own]).softmax(0)
        q = torch.stack([each[c] / 0.5 for each in cosines]).softmax(0)
        for one, other in zip(p, q, strict=True):
            each = share * one * (one / other).log() + (1 - share) * other * (other / one).log()
            total = total + 0.7 * each / len(CLASSES)
    return total


UNDONE = {f"classifier.{layer}.bias" for layer in (0, 3, 6)}
"""Biases before a batch normalisation, which cancels them: their gradients are only rounding errors."""


def test_loss_and_gradients_match_the_equations(method, images):
    names = [name for name in method.trainable_by_name() if name not in UNDONE and "threshold" not in name]
    parameters = [method.get_parameter(name) for name in names]
    loss = method.training_step((images, LABELS), 0)
    slow = assert_same(loss, slow_loss(method, method.clip.encode_image(images)), parameters)
    assert min(gradient.abs().max() for gradient in slow) > 1e-5


def test_the_thresholds_gradient_treats_the_step_as_a_ramp():
    torch.manual_seed(0)
    layer = MaskedLinear(5, 3)
    with torch.no_grad():
        layer.threshold.copy_(torch.tensor([0.0, 0.9, -2.0]))
    values = torch.randn(4, 5)
    upstream = torch.randn(4, 3)
    outputs = layer(values)
    (outputs * upstream).sum().backward()
    weighted = values @ layer.weight.T
    torch.testing.assert_close(outputs, weighted * torch.tensor([1.0, 0.0, 1.0]) + layer.bias)
    expected = -(weighted * upstream).sum(0) * torch.tensor([1.0, 1.0, 0.0])  # the last is more than 1 from its step
    torch.testing.assert_close(layer.threshold.grad, expected)


def test_a_single_image_is_normalised_as_in_evaluation():
    norm = BatchNorm(3)
    norm(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)))
    mean = norm.running_mean.clone()
    one = torch.tensor([[0.3, -2.0, 1.0]])
    found = norm(one)
    assert torch.equal(norm.running_mean, mean)
    torch.testing.assert_close(found, norm.eval()(one))
    torch.testing.assert_close(found[0], (one[0] - mean) / (norm.running_var + 1e-5).sqrt())


def test_adapter_and_classifier_have_separate_rates(method):
    adapter, classifier = method.configure_optimizers().param_groups
    assert (adapter["lr"], classifier["lr"]) == (5e-4, 1e-4)
    assert [len(adapter["params"]), len(classifier["params"])] == [6, 18]
