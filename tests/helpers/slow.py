"""Steps that slow references have in common, and what they are compared with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client


def unit(vector: Tensor) -> Tensor:
    """Returns a vector at the length one."""
    return vector / vector.square().sum().sqrt()


def cosine(one, other):
    """Returns the cosine of the angle between two vectors, of PyTorch or of NumPy."""
    return one @ other / (one @ one) ** 0.5 / (other @ other) ** 0.5


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


def gradients(loss: Tensor, module: nn.Module) -> dict[str, Tensor]:
    """Returns the gradients of a loss by name, of the parameters that have one."""
    module.zero_grad()
    loss.backward()
    return {name: value.grad.clone() for name, value in module.named_parameters() if value.grad is not None}


def begin(module, client: int, phase: int = 0, *, round: int = 0, domain: int = 0) -> None:
    """Starts a client's local training, with images as good as any."""
    module.start_client(RoundContext(round, module.configure_phases()[phase], Client(client, domain, 4)))
