"""FedDEAP: its losses and the parameters that each trains, its frames, and the shared prompts."""

import pytest
import torch

from fedvlp import FedDEAP
from fedvlp.core.protocols import DOMAIN
from fedvlp.methods.fed_deap import equiangular_frame
from fedvlp.utils.errors import UserError
from tests.helpers.slow import CLASSES, cosine, slow_logits, slow_texts

DOMAINS = ["ink", "paint", "photo", "sketch"]
LABELS = torch.tensor([2, 0, 1, 2])
LENGTH = 3


def make(clip, **options):
    torch.manual_seed(5)
    return FedDEAP(CLASSES, DOMAINS, clip, prompt_length=LENGTH, **options)


def batch(clip, images, domains):
    return {"features": clip.encode_image(images), DOMAIN: torch.tensor(domains)}, LABELS


def mean_cross_entropy(vectors, directions, targets, scale):
    """Compute the mean cross-entropy of scaled cosines, one vector at a time."""
    total = 0
    for vector, target in zip(vectors, targets, strict=True):
        scores = torch.stack([scale * cosine(vector, direction) for direction in directions])
        total = total - scores.log_softmax(0)[target] / len(targets)
    return total


def slow_losses(module, features, domains):
    """Compute L_cls, L_s, L_d, L_sa and L_da."""
    texts = slow_texts(module.clip, torch.cat([module.global_prompt, module.local_prompt], dim=1))
    semantic, domain = module.semantic_network, module.domain_network
    alignments = [mean_cross_entropy(domain(torch.stack(texts)), module.domain_frame, [k] * 3, 1.0) for k in domains]
    return [
        mean_cross_entropy(features, texts, LABELS.tolist(), module.clip.logit_scale),
        mean_cross_entropy(semantic(features), module.class_frame, LABELS.tolist(), 1.0),
        mean_cross_entropy(domain(features), module.domain_frame, domains, 1.0),
        mean_cross_entropy(semantic(torch.stack(texts)), module.class_frame, [0, 1, 2], 1.0),
        sum(alignments) / len(alignments),
    ]


@pytest.mark.parametrize("domains", [[1, 1, 1, 1], [3, 0, 3, 3]])
def test_each_loss_trains_only_its_own_parameters(clip, images, domains):
    """For a client with one domain, and for a client with two."""
    module = make(clip, semantic_weight=0.5, domain_weight=3.0)
    inputs, labels = batch(clip, images, domains)
    classes, semantic, domain, semantic_alignment, domain_alignment = slow_losses(module, inputs["features"], domains)
    objectives = {
        "global_prompt": classes + 0.5 * semantic_alignment,
        "local_prompt": classes + 3.0 * domain_alignment,
        "semantic_network": semantic,
        "domain_network": domain,
    }
    loss = module.training_step((inputs, labels), 0)
    torch.testing.assert_close(loss, sum(objectives.values()), atol=1e-5, rtol=1e-5)
    loss.backward()
    parameters = dict(module.named_parameters())
    for prefix, objective in objectives.items():
        names = [name for name in parameters if name.startswith(prefix)]
        wanted = torch.autograd.grad(objective, [parameters[name] for name in names], retain_graph=True)
        for name, gradient in zip(names, wanted, strict=True):
            assert gradient.any()
            bound = 1e-5 * gradient.abs().max().clamp_min(1.0).item()
            torch.testing.assert_close(parameters[name].grad, gradient, atol=bound, rtol=1e-4)


@pytest.mark.parametrize("count", [2, 5, 64])
def test_directions_of_a_frame_are_maximally_separated(count):
    frame = equiangular_frame(count, 64, seed=0)
    expected = torch.full((count, count), -1 / (count - 1)).fill_diagonal_(1)
    torch.testing.assert_close(frame @ frame.T, expected, atol=1e-5, rtol=0)
    assert torch.equal(frame, equiangular_frame(count, 64, seed=0))
    assert not torch.allclose(frame, equiangular_frame(count, 64, seed=1), atol=0.1)


def test_the_shared_part_uses_only_global_prompts(clip, images):
    module = make(clip)
    features = clip.encode_image(images)
    with torch.no_grad(), module.shared_part_only():
        texts = slow_texts(clip, module.global_prompt)
        expected = torch.stack([slow_logits(clip, feature, texts) for feature in features])
        torch.testing.assert_close(module(images), expected, atol=1e-3, rtol=1e-4)
    assert not torch.allclose(module(images), expected, atol=1e-2)


def test_more_classes_than_dimensions_are_rejected():
    with pytest.raises(UserError, match="at most 4 classes or domains, the width of the features; got 5"):
        equiangular_frame(5, 4, seed=0)
