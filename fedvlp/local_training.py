"""One client's local training: plain Lightning hooks and one optimizer, made afresh."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from lightning import Fabric
from torch import Tensor

from fedvlp.errors import UserError
from fedvlp.module import FederatedModule
from fedvlp.protocols import Batch, Loader


def num_steps(num_batches: int, epochs: int, steps: int | None) -> int:
    """Returns how many optimizer steps a client takes in one phase."""
    return epochs * num_batches if steps is None else steps


def train_client(
    fabric: Fabric, module: FederatedModule, loader: Loader, steps: int, on_step: Callable[[Tensor], None]
) -> dict[str, float]:
    """Trains the module's current tensors on one client's batches, and returns the means of what was logged.

    Args:
        fabric: device, precision and gradient scaling.
        module: after ``begin``; trained in place.
        loader: batches of (inputs, labels); gone through again until all steps are taken.
        steps: number of optimizer steps.
        on_step: called with the detached loss after each step.
    """
    made = module.configure_optimizers()
    if made is None:
        return module.logged_means()
    optimizer: Any = fabric.setup_optimizers(made)
    module.train()
    for index, batch in enumerate(islice(_forever(loader), steps)):
        inputs, labels = fabric.to_device(batch)
        with fabric.autocast():
            loss = module.training_step((inputs, labels), index)
        if not isinstance(loss, Tensor):
            raise UserError(f"{type(module).__name__}.training_step must return the loss, a tensor; got {loss!r}.")
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        module.on_train_batch_end(loss, (inputs, labels), index)
        on_step(loss.detach())
    return module.logged_means()


def _forever(loader: Loader) -> Iterator[Batch]:
    """Goes through the loader again and again; each pass shuffles anew."""
    while True:
        yield from loader
