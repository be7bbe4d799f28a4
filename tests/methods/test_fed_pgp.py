"""FedPGP's loss and gradients class by class, where it is PromptFL, and which part stands alone."""

from __future__ import annotations

import pytest
import torch

from fedvlp import FedPGP, PromptFL
from fedvlp.clip import PromptedTextEncoder
from tests.helpers.slow import assert_same, cosine

CLASSES = ["red circle", "star", "big square"]
LABELS = torch.tensor([2, 0, 1, 2])
PARTS = ("global_prompt", "local_left", "local_right")


def make(clip, **options):
    torch.manual_seed(5)
    module = FedPGP(CLASSES, clip, prompt_length=5, rank=2, **options)
    with torch.no_grad():
        module.local_left.add_(0.5 * torch.randn_like(module.local_left))
        module.local_right.add_(0.5 * torch.randn_like(module.local_right))
    return module


def slow_contrast(written, shared, personal, temperature):
    """The equation, class by class: a class's global feature and its hand-written one are the pair that belongs."""
    terms = []
    for one, known, own in zip(shared, written, personal, strict=True):
        right = (cosine(one, known) / temperature).exp()
        wrong = (cosine(one, own) / temperature).exp()
        terms.append(-(right / (right + wrong)).log())
    return sum(terms) / len(terms)


def slow_loss(clip, images, parts, weight, temperature):
    """Cross-entropy and contrast, one image and one class after another, each class in a sequence of its own."""
    shared, left, right = parts
    own = []
    for vector, shares in zip(shared, left, strict=True):
        own.append(vector + sum(share * row for share, row in zip(shares, right, strict=True)))
    features = []
    for prompt in (shared, torch.stack(own)):
        encoders = [PromptedTextEncoder(clip, [name], prompt_length=5, layout="plain") for name in CLASSES]
        features.append([encoder(prompt)[0] for encoder in encoders])
    written = [clip.encode_text(clip.tokenizer([f"a photo of a {name}."]))[0] for name in CLASSES]
    loss = weight * slow_contrast(written, features[0], features[1], temperature)
    for feature, label in zip(clip.encode_image(images), LABELS.tolist(), strict=True):
        scores = torch.stack([clip.logit_scale * cosine(feature, text) for text in features[1]])
        loss = loss - scores.log_softmax(0)[label] / 4
    return loss


@pytest.mark.parametrize(("weight", "temperature"), [(0.5, 0.5), (40.0, 0.25)])
def test_loss_and_gradients_are_those_of_the_paper(clip, images, weight, temperature):
    method = make(clip, contrast_weight=weight, temperature=temperature)
    parts = [getattr(method, name).detach().clone().requires_grad_() for name in PARTS]
    expected = slow_loss(clip, images, parts, weight, temperature)
    loss = method.training_step((images, LABELS), 0)
    slow = assert_same(loss, expected, [getattr(method, name) for name in PARTS], parts)
    assert all(gradient.any() for gradient in slow)


def test_the_shared_part_alone_is_promptfl(clip, images):
    method = make(clip)
    plain = PromptFL(CLASSES, clip, prompt_length=5)
    with torch.no_grad():
        plain.prompt.copy_(method.global_prompt)
    with method.shared_part_alone():
        torch.testing.assert_close(method(images), plain(images))
    assert not torch.allclose(method(images), plain(images), atol=1e-2)
