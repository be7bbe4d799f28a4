"""DoPrompt: its equations image by image, and predictions without the domain."""

import math

import pytest
import torch

from fedvlp import DoPrompt
from tests.helpers.slow import CLASSES, assert_step, slow_logits

DOMAINS = ["ink", "paint"]
LABELS = [0, 2, 1, 2]
OF = [1, 0, 0, 1]


@pytest.fixture
def module(clip):
    torch.manual_seed(0)
    module = DoPrompt(CLASSES, DOMAINS, clip, prompt_length=3, domain_weight=0.7)
    with torch.no_grad():
        module.prompts.copy_(torch.randn_like(module.prompts))
    return module


def prompted_logits(module, image, prompt):
    """Encode one image and one prompt with the trained tower's layers, and compare with each class's text."""
    visual = module.visual
    tokens = visual._embeds(image[None])
    tokens = torch.cat([tokens, visual.ln_pre(prompt)[None]], dim=1)
    for block in visual.transformer.resblocks:
        tokens = block(tokens)
    feature = visual.ln_post(tokens[0, 0]) @ visual.proj
    return slow_logits(module.clip, feature, module.text_features)


def slow_weights(module, image):
    """Compute the adapter's softmax over domains for each prompt vector, without a gradient to the tower."""
    with torch.no_grad():
        feature = module.visual(image[None])[0]
    hidden = torch.relu(module.adapter[0].weight @ feature + module.adapter[0].bias)
    scores = module.adapter[2].weight @ hidden + module.adapter[2].bias
    weights = torch.zeros(2, 3)
    for vector in range(3):
        powers = [math.e ** scores[3 * domain + vector] for domain in range(2)]
        for domain in range(2):
            weights[domain, vector] = powers[domain] / sum(powers)
    return weights


def slow_loss(module, images):
    total = 0.0
    for image, label, domain in zip(images, LABELS, OF, strict=True):
        weights = slow_weights(module, image)
        mixed = []
        for vector in range(3):
            mixed.append(sum(weights[k, vector] * module.prompts[k, vector] for k in range(2)))
        total -= prompted_logits(module, image, module.prompts[domain]).log_softmax(0)[label] / 4
        total -= prompted_logits(module, image, torch.stack(mixed)).log_softmax(0)[label] / 4
        for k in range(2):
            right = weights[k] if k == domain else 1 - weights[k]
            total -= 0.7 * right.log().sum() / (4 * 2 * 3)
    return total


def test_loss_and_gradients_match_the_paper(module, images):
    inputs = {"images": images, "domain": torch.tensor(OF)}
    assert module.trainable_by_name().keys() > {"prompts", "adapter.0.weight", "visual.conv1.weight"}
    assert_step(module, inputs, torch.tensor(LABELS), slow_loss(module, images))


def test_predictions_do_not_depend_on_the_domain(module, images):
    plain = module(images)
    for domains in ([0, 0, 0, 0], OF):
        assert torch.equal(module({"images": images, "domain": torch.tensor(domains)}), plain)


def test_the_optimizers_rate_and_decay_apply_only_to_the_tower(clip):
    module = DoPrompt(
        CLASSES, DOMAINS, clip, optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-5, weight_decay=0.02)
    )
    optimizer = module.configure_optimizers()
    names = {id(value): name for name, value in module.named_parameters() if value.requires_grad}
    rates, decays = {}, {}
    for group in optimizer.param_groups:
        for value in group["params"]:
            name = names[id(value)]
            rates[name.split(".")[0]] = group["lr"]
            decays[name] = group["weight_decay"]
    assert rates == {"visual": 1e-5, "prompts": 1e-3, "adapter": 1e-4}
    assert decays.keys() == set(names.values())
    assert {decays["prompts"], decays["adapter.0.weight"], decays["adapter.2.bias"]} == {1e-5}
    assert (decays["visual.proj"], decays["visual.ln_post.bias"]) == (0.02, 0.0)
