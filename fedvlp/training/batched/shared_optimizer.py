"""One optimizer for the stacked tensors of several clients, where that comes to the same as one for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import State
from fedvlp.training.optimizer_state import load_optimizer_state

_NAMES = ("SGD", "Adam", "AdamW", "Adamax", "RAdam", "RMSprop", "Adagrad", "Adadelta")
ELEMENTWISE = tuple(getattr(torch.optim, name) for name in _NAMES)
"""Optimizers that move each number by its own gradients alone, and remember nothing else but their steps."""


class CannotBatchError(Exception):
    """These clients do not take the same steps; others may."""


def shared_optimizer(
    module: FederatedModule, trainable: Mapping[str, Tensor], memories: Sequence[State | None], factor: float
) -> Optimizer:
    """Returns one optimizer for all clients.

    Args:
        module: which says what optimizer it wants.
        trainable: the stacked tensors by name.
        memories: what each client's optimizer goes on from.
        factor: on the learning rates.

    Raises:
        TypeError: if the optimizer may mix the clients.
        CannotBatchError: if the clients' optimizers have taken different steps.
    """
    is_usual = type(module).configure_optimizers is FederatedModule.configure_optimizers
    if not is_usual or module.make_optimizer is None:
        raise TypeError(f"{type(module).__name__} makes its optimizer itself")
    made = module.make_optimizer(list(trainable.values()))
    if type(made) not in ELEMENTWISE:
        raise TypeError(f"{type(made).__name__} may not move each number by itself")
    for group in made.param_groups:
        group["lr"] *= factor
    if any(memories):
        load_optimizer_state(made, trainable, _stacked([memory or {} for memory in memories]))
    return made


def memory_of(memory: State, client: int) -> State:
    """Returns what the optimizer remembers of the client at this place."""
    return {name: value if _counts_steps(name) else value[client] for name, value in memory.items()}


def _stacked(memories: Sequence[State]) -> State:
    """Returns what the clients' optimizers remember as what one does."""
    first, *others = memories
    for other in others:
        if other.keys() != first.keys() or any(_counts_steps(name) and other[name] != first[name] for name in first):
            raise CannotBatchError
    return {
        name: value if _counts_steps(name) else torch.stack([memory[name] for memory in memories])
        for name, value in first.items()
    }


def _counts_steps(name: str) -> bool:
    """Whether a memory is the number of steps, one for all clients."""
    return name.endswith("/step")
