"""One optimizer for the stacked tensors of several clients, where that comes to the same as one for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import State
from fedvlp.training.batched.errors import CannotBatchError, UnequalStepsError
from fedvlp.training.optimizer_state import load_optimizer_state

_NAMES = ("SGD", "Adam", "AdamW", "Adamax", "RAdam", "RMSprop", "Adagrad", "Adadelta")
ELEMENTWISE = tuple(getattr(torch.optim, name) for name in _NAMES)
"""Optimizers that move each number by its own gradients alone, and remember nothing else but their steps."""


def shared_optimizer(
    module: FederatedModule, trainable: Mapping[str, Tensor], states: Sequence[State | None], factor: float
) -> Optimizer:
    """Returns one optimizer for all clients.

    Args:
        module: which says what optimizer it wants.
        trainable: the stacked tensors by name.
        states: what each client's optimizer continues from; None lets all start anew.
        factor: on the learning rates.

    Raises:
        CannotBatchError: if the optimizer may mix the clients.
        UnequalStepsError: if the clients' optimizers have taken different steps.
    """
    is_usual = type(module).configure_optimizers is FederatedModule.configure_optimizers
    if not is_usual or module.make_optimizer is None:
        raise CannotBatchError(f"{type(module).__name__} makes its optimizer itself")
    made = module.make_optimizer(list(trainable.values()))
    if type(made) not in ELEMENTWISE:
        raise CannotBatchError(f"{type(made).__name__} may not move each number by itself")
    for group in made.param_groups:
        group["lr"] *= factor
    if any(states):
        load_optimizer_state(made, trainable, _stacked([state or {} for state in states]))
    return made


def clip_each(tensors: Iterable[Tensor], max_norm: float) -> None:
    """Shortens the gradient of each client, of all its tensors together, to a norm, as PyTorch does for one client.

    Args:
        tensors: of all clients, stacked [K, ...].
        max_norm: the largest norm, > 0.

    >>> both = torch.zeros(2, 1, requires_grad=True)
    >>> both.grad = torch.tensor([[4.0], [0.5]])
    >>> clip_each([both], 2.0)
    >>> both.grad
    tensor([[2.0000],
            [0.5000]])
    """
    gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
    norms = torch.stack([gradient.reshape(len(gradient), -1).norm(dim=1) for gradient in gradients]).norm(dim=0)  # [K]
    shares = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(shares.view(-1, *[1] * (gradient.dim() - 1)))


def state_of_client(stacked: State, place: int) -> State:
    """Returns what the optimizer remembers of the client at this place of the stack."""
    return {name: value if _counts_steps(name) else value[place] for name, value in stacked.items()}


def _stacked(states: Sequence[State]) -> State:
    """Returns the states of the clients' optimizers as that of one."""
    first = states[0]
    for other in states[1:]:
        if other.keys() != first.keys():
            raise UnequalStepsError("clients' optimizers remember different tensors")
        if any(_counts_steps(name) and other[name] != first[name] for name in first):
            raise UnequalStepsError("clients' optimizers have taken different numbers of steps")
    stacked: State = {}
    for name, value in first.items():
        stacked[name] = value if _counts_steps(name) else torch.stack([state[name] for state in states])
    return stacked


def _counts_steps(name: str) -> bool:
    """Whether a tensor is the number of steps, one for all clients."""
    return name.endswith("/step")
