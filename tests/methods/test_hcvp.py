"""HCVP: its equations, image by image, and predictions without domain or batch."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedvlp import HCVP
from tests.helpers.slow import CLASSES, assert_step, slow_cross_entropy

LABELS = [0, 2, 0, 2, 0]
OF = [1, 0, 1, 1, 0]


@pytest.fixture
def module(clip):
    torch.manual_seed(0)
    return HCVP(CLASSES, clip, domain_weight=0.3, task_weight=0.5, class_weight=0.7, temperature=0.6)


def slow_prompts(module, image):
    """Compute an image's two prompts, the task prompt as the average of a 1 x 1 convolution over patches."""
    with torch.no_grad():
        patches = module.clip.image.encode(image[None])[1][0, 1:]
    domain = module.domain_generator.weight @ patches.mean(0) + module.domain_generator.bias
    generator = module.task_generator
    over_patches = [generator.weight @ torch.cat([patch, domain]) + generator.bias for patch in patches]
    return domain, torch.stack(over_patches).mean(0)


def slow_feature(module, image, domain, task):
    visual = module.visual
    prompts = [visual.ln_pre(domain), visual.ln_pre(task)]
    tokens = list(visual._embeds(image[None])[0])
    for index, block in enumerate(visual.transformer.resblocks):
        if index > 0:
            tokens = tokens[:-2]
            modulation = module.modulation
            prompts = [modulation.weight @ prompt + modulation.bias for prompt in (domain, task)]
        tokens = list(block(torch.stack([*tokens, *prompts])[None])[0])
        prompts = []
        if index + 1 == len(visual.transformer.resblocks):
            return visual.ln_post(tokens[0]) @ visual.proj
    raise AssertionError


def slow_contrast(vectors, are_alike, temperature):
    terms = []
    for i, vector in enumerate(vectors):
        positives, total = 0.0, 0.0
        for j, other in enumerate(vectors):
            if i == j:
                continue
            power = math.e ** (F.cosine_similarity(vector, other, dim=0) / temperature)
            total = total + power
            positives = positives + power if are_alike(i, j) else positives
        if isinstance(positives, torch.Tensor):
            terms.append(-torch.log(positives / total))
    return sum(terms) / len(terms)


def slow_loss(module, images):
    prompts = [slow_prompts(module, image) for image in images]
    features = [slow_feature(module, image, *own) for image, own in zip(images, prompts, strict=True)]
    total = slow_cross_entropy(module.clip, features, module.text_features, torch.tensor(LABELS))
    total += 0.3 * slow_contrast([own[0] for own in prompts], lambda i, j: OF[i] == OF[j], 0.6)
    task = [own[1] for own in prompts]
    total += 0.5 * slow_contrast(task, lambda i, j: OF[i] == OF[j] and LABELS[i] == LABELS[j], 0.6)
    return total + 0.7 * slow_contrast(features, lambda i, j: LABELS[i] == LABELS[j], 0.6)


def test_loss_and_gradients_match_the_paper(module, images):
    inputs = {"images": images, "domain": torch.tensor(OF)}
    trained = {"domain_generator.weight", "task_generator.weight", "modulation.weight"}
    assert module.trainable_by_name().keys() > trained
    assert_step(module, inputs, torch.tensor(LABELS), slow_loss(module, images))


def test_predictions_depend_on_neither_domain_nor_batch(module, images):
    together = module({"images": images, "domain": torch.tensor(OF)})
    separate = torch.cat([module(image[None]) for image in images])
    torch.testing.assert_close(together, separate, rtol=1e-4, atol=1e-4)
