"""Steps that slow references have in common, and what they are compared with."""

from __future__ import annotations

from torch import Tensor, nn

from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client


def unit(vector: Tensor) -> Tensor:
    """Returns a vector at the length one."""
    return vector / vector.square().sum().sqrt()


def cosine(one: Tensor, other: Tensor) -> Tensor:
    """Returns the cosine of the angle between two vectors."""
    return (one * other).sum() / one.square().sum().sqrt() / other.square().sum().sqrt()


def gradients(loss: Tensor, module: nn.Module) -> dict[str, Tensor]:
    """Returns the gradients of a loss by name, of the parameters that have one."""
    module.zero_grad()
    loss.backward()
    return {name: value.grad.clone() for name, value in module.named_parameters() if value.grad is not None}


def begin(module, client: int, phase: int = 0) -> None:
    """Starts a client's local training in the first round, in a domain and with images as good as any."""
    module.start_client(RoundContext(0, module.configure_phases()[phase], Client(client, 0, 4)))
