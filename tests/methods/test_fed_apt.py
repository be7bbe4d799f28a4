"""FedAPT: its prompts, losses and weights, class by class and image by image, and its keys."""

import math

import pytest
import torch

from fedvlp import FedAPT
from fedvlp.utils.errors import UserError
from tests.helpers.slow import CLASSES, assert_same, begin, slow_logits, slow_texts

DOMAINS = ["ink", "paint", "photo"]
LABELS = torch.tensor([2, 0, 1, 2])
L = 3


@pytest.fixture
def method(clip):
    torch.manual_seed(5)
    return FedAPT(CLASSES, DOMAINS, clip, prompt_length=L, temperature=0.8)


def scaled_logits(clip, feature, prompt, key):
    """Compute one image's logits, with each class's prompt scaled by a key."""
    return slow_logits(clip, feature, slow_texts(clip, torch.stack([each + each * key for each in prompt])))


def slow_weights(scores, temperature):
    mean = sum(scores) / len(scores)
    deviation = math.sqrt(sum((score - mean) ** 2 for score in scores) / (len(scores) - 1))
    powers = [math.exp((score - mean) / deviation / temperature) for score in scores]
    return [power / sum(powers) for power in powers]


def test_each_image_is_classified_with_its_own_mixture_of_keys(method, images):
    features = method.clip.encode_image(images)
    expected = []
    for feature in features:
        weights = slow_weights((method.domain_classifier.weight @ feature).tolist(), 0.8)
        assert max(weights) - min(weights) > 0.05
        key = sum(weight * key for weight, key in zip(weights, method.keys, strict=True))
        expected.append(scaled_logits(method.clip, feature, method.prompt, key))
    torch.testing.assert_close(method(images), torch.stack(expected), atol=1e-3, rtol=1e-4)


def test_loss_and_gradients_match_the_paper(method, images):
    """For a client of the second domain: its key scales all prompts, and its index is Q's target."""
    prompt = method.prompt.detach().clone().requires_grad_()
    matrix = method.domain_classifier.weight.detach().clone().requires_grad_()
    expected = 0.0
    for feature, label in zip(method.clip.encode_image(images), LABELS.tolist(), strict=True):
        classes = scaled_logits(method.clip, feature, prompt, method.keys[1])
        powers = [torch.exp(row @ feature) for row in matrix]
        expected = expected - classes.log_softmax(0)[label] - torch.log(powers[1] / sum(powers))
    expected = expected / len(images)
    begin(method, 0, domain=1)
    loss = method.training_step((images, LABELS), 0)
    assert_same(loss, expected, [method.prompt, method.domain_classifier.weight], [prompt, matrix])
    assert method.logged_means()["domain_loss"] > 0


def test_keys_depend_only_on_the_key_seed(clip):
    """They are equal on server and clients, and a domain's key does not depend on the number of domains."""
    torch.manual_seed(1)
    server = FedAPT(CLASSES, DOMAINS, clip, prompt_length=L, key_seed=4)
    torch.manual_seed(2)
    client = FedAPT(CLASSES, DOMAINS[:2], clip, prompt_length=L, key_seed=4)
    assert torch.equal(server.keys[:2], client.keys)
    assert 0 <= server.keys.min() < 0.1 < 0.9 < server.keys.max() < 1
    assert not torch.equal(FedAPT(CLASSES, DOMAINS, clip, prompt_length=L, key_seed=5).keys, server.keys)


def test_a_client_with_several_domains_is_rejected(method, images):
    begin(method, 0, domain=-1)
    with pytest.raises(UserError, match="FedAPT needs clients of one domain each"):
        method.training_step((images, LABELS), 0)
