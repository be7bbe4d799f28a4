"""Shared steps of slow reference implementations, and assertions that compare with them."""

from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from fedvlp.clip import PromptedTextEncoder
from fedvlp.clip.packing import stack
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client

CLASSES = ["red circle", "star", "big square"]


def unit(vector: Tensor) -> Tensor:
    return vector / vector.square().sum().sqrt()


def cosine(one, other):
    """Compute the cosine similarity of two vectors of PyTorch or NumPy."""
    return one @ other / (one @ one) ** 0.5 / (other @ other) ** 0.5


def plain_encoder(clip, names, **options) -> PromptedTextEncoder:
    """Make an encoder of sequences of the full context length, one for each class, as CoOp's code has."""
    encoder = PromptedTextEncoder(clip, names, **options)
    encoder.rows = stack(encoder._sequences(class_specific=False), clip.context_length)
    return encoder


@lru_cache(32)
def _encoder(clip, name, prompt_length) -> PromptedTextEncoder:
    return plain_encoder(clip, [name], prompt_length=prompt_length)


def slow_texts(clip, prompts, deeper=None, names=CLASSES) -> list[Tensor]:
    """Encode one class at a time, with a prompt [L, D] or a prompt for each class [C, L, D]."""
    features = []
    for name, prompt in zip(names, prompts if prompts.ndim == 3 else [prompts] * len(names), strict=True):
        features.append(_encoder(clip, name, len(prompt))(prompt, deeper)[0])
    return features


def slow_logits(clip, feature, texts) -> Tensor:
    """Compute the logits of an image's feature, one class at a time."""
    return torch.stack([clip.logit_scale * cosine(feature, text) for text in texts])


def slow_cross_entropy(clip, features, texts, labels) -> Tensor:
    """Compute the mean cross-entropy, one image at a time. ``texts`` has one feature per class."""
    pairs = zip(features, labels.tolist(), strict=True)
    terms = [-slow_logits(clip, feature, texts).log_softmax(0)[label] for feature, label in pairs]
    return sum(terms) / len(terms)


@torch.no_grad()
def spread(tensors: Iterable[Tensor], deviation: float) -> None:
    """Add noise to tensors, so that all of them affect the result."""
    for tensor in tensors:
        tensor.add_(deviation * torch.randn_like(tensor))


def assert_same(loss, expected, tensors, others=None) -> tuple[Tensor, ...]:
    """Assert that two losses and their gradients are equal. ``others`` are the second loss's tensors, if different.

    Returns:
        Gradients of the second loss.
    """
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5, check_dtype=False)
    found = torch.autograd.grad(loss, tensors)
    wanted = torch.autograd.grad(expected, tensors if others is None else others)
    for one, other in zip(found, wanted, strict=True):
        bound = 1e-5 * other.abs().max().clamp_min(1.0).item()
        torch.testing.assert_close(one, other, atol=bound, rtol=1e-4, check_dtype=False)
    return wanted


def assert_step(module, images, labels, expected) -> None:
    """Assert that a training step has this loss and its gradients, nonzero for every trained tensor."""
    loss = module.training_step((images, labels), 0)
    wanted = assert_same(loss, expected, list(module.trainable_by_name().values()))
    assert all(gradient.any() for gradient in wanted)


def begin(module, client: int, phase: int = 0, *, round: int = 0, domain: int = 0) -> None:
    """Start a client's local training, as if it had four images."""
    module.start_client(RoundContext(round, module.configure_phases()[phase], Client(client, domain, 4)))
