"""Steps that slow references have in common, and what they are compared with."""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedvlp.clip import PromptedTextEncoder
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client

CLASSES = ["red circle", "star", "big square"]


def unit(vector: Tensor) -> Tensor:
    """Returns a vector at the length one."""
    return vector / vector.square().sum().sqrt()


def cosine(one, other):
    """Returns the cosine of the angle between two vectors, of PyTorch or of NumPy."""
    return one @ other / (one @ one) ** 0.5 / (other @ other) ** 0.5


def slow_texts(clip, prompts, deeper=None, names=CLASSES) -> list[Tensor]:
    """The text features under a prompt [L, D] or one for each class, each class in a sequence of its own."""
    features = []
    for name, prompt in zip(names, prompts if prompts.ndim == 3 else [prompts] * len(names), strict=True):
        encoder = PromptedTextEncoder(clip, [name], prompt_length=len(prompt), layout="plain")
        features.append(encoder(prompt, deeper)[0])
    return features


def slow_logits(clip, feature, texts) -> Tensor:
    """The logits of an image's feature, one class after another."""
    return torch.stack([clip.logit_scale * cosine(feature, text) for text in texts])


def slow_cross_entropy(clip, features, texts, labels) -> Tensor:
    """The mean cross-entropy, one image after another; ``texts`` are of the classes."""
    pairs = zip(features, labels.tolist(), strict=True)
    terms = [-slow_logits(clip, feature, texts).log_softmax(0)[label] for feature, label in pairs]
    return sum(terms) / len(terms)


@torch.no_grad()
def spread(tensors: Iterable[Tensor], deviation: float) -> None:
    """Moves tensors by noise, so that all of them matter."""
    for tensor in tensors:
        tensor.add_(deviation * torch.randn_like(tensor))


def assert_same(loss, expected, tensors, others=None) -> tuple[Tensor, ...]:
    """Fails unless two losses are equal, and their gradients of some tensors; the second may have tensors of its own.

    Returns the second's gradients.
    """
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5, check_dtype=False)
    found = torch.autograd.grad(loss, tensors)
    wanted = torch.autograd.grad(expected, tensors if others is None else others)
    for one, other in zip(found, wanted, strict=True):
        bound = 1e-5 * other.abs().max().clamp_min(1.0).item()
        torch.testing.assert_close(one, other, atol=bound, rtol=1e-4, check_dtype=False)
    return wanted


def assert_step(module, images, labels, expected) -> None:
    """Fails unless a training step has this loss, and its gradients, none of them zero, for all that is trained."""
    loss = module.training_step((images, labels), 0)
    wanted = assert_same(loss, expected, list(module.trainable_by_name().values()))
    assert all(gradient.any() for gradient in wanted)


def begin(module, client: int, phase: int = 0, *, round: int = 0, domain: int = 0) -> None:
    """Starts a client's local training, with images as good as any."""
    module.start_client(RoundContext(round, module.configure_phases()[phase], Client(client, domain, 4)))
