"""One client's local training: plain Lightning hooks, its batches of one phase, and one optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import chain, count, islice

from lightning import Fabric
from torch import Tensor

from fedvlp.core.protocols import Batch, Loader
from fedvlp.core.state import State
from fedvlp.training.optimizer_state import load_optimizer_state, optimizer_state
from fedvlp.training.optimizers import Optimizers
from fedvlp.training.schedules import Schedule
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains in one phase of a round.

    Attributes:
        epochs: passes over its data, > 0. With a fraction a pass goes on over several rounds.
        steps: optimizer steps in place of passes; None for passes.
        schedule: factor on the optimizer's learning rates by round; None for none.
        reset_optimizer: whether an optimizer starts without memory; else it goes on from the client's last round.
    """

    epochs: float = 1
    steps: int | None = None
    schedule: Schedule | None = None
    reset_optimizer: bool = True

    def batches(self, loader_of: Callable[[int], Loader], round: int) -> tuple[Iterator[Batch], int]:
        """Returns a client's batches in one phase of a round, and how many they are.

        Whole epochs and steps shuffle anew in each round. A fraction of an epoch takes the next batches of one endless
        row of passes, so that no image is left out or seen twice before a pass is over; where a client stands in it
        follows from the round alone, whether it took part in the rounds before or not.

        Args:
            loader_of: from the number of a shuffle to the batches in that order.
            round: number of finished rounds.
        """
        goes_on = self.steps is None and self.epochs != int(self.epochs)
        loader = loader_of(0 if goes_on else round)
        steps = num_steps(len(loader), self.epochs, self.steps)
        if not goes_on:
            return islice(_forever(loader), steps), steps
        number, done = divmod(round * steps, len(loader))
        passes = chain.from_iterable(loader_of(later) for later in count(number))
        return islice(passes, done, done + steps), steps


@cache
def num_steps(num_batches: int, epochs: float, steps: int | None) -> int:
    """Returns how many optimizer steps a client takes in one phase; a begun batch counts as a whole one.

    >>> num_steps(30, 0.1, None), num_steps(5, 0.5, None), num_steps(5, 2, None), num_steps(5, 2, 7)
    (3, 3, 10, 7)
    """
    return math.ceil(Fraction(str(epochs)) * num_batches) if steps is None else steps


def train_client(
    optimizers: Optimizers,
    batches: Iterable[Batch],
    on_step: Callable[[Tensor], None],
    factor: float = 1.0,
    memory: State | None = None,
) -> tuple[dict[str, float], State]:
    """Trains the module's current tensors on one client's batches.

    Args:
        optimizers: of the module, after ``begin``; it is trained in place.
        batches: one (inputs, labels) for each optimizer step.
        on_step: called with the detached loss after each step.
        factor: on the learning rates of the optimizer.
        memory: what the optimizer goes on from; None lets it start anew and forgets what it learns.

    Returns:
        The means of what was logged, and the optimizer's memory.
    """
    fabric, module = optimizers.fabric, optimizers.module
    found = optimizers.fresh()
    if found is None:
        return module.logged_means(), {}
    made, optimizer = found
    for group in made.param_groups:
        group["lr"] *= factor
    if memory:
        load_optimizer_state(made, module.exchangeable_tensors(), memory)
    _begin_scale(fabric)
    if not module.training:
        module.train()
    for index, batch in enumerate(batches):
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
    return module.logged_means(), {} if memory is None else optimizer_state(made, module.exchangeable_tensors())


def _begin_scale(fabric: Fabric, scale: float = 1024.0) -> None:
    """Scales gradients anew, where precision 16-mixed does, so that no client depends on those before it.

    The scale is far below PyTorch's first, with which a client's first steps would overflow and be left out.
    """
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    if scaler is not None:
        scaler.load_state_dict({**scaler.state_dict(), "scale": scale, "_growth_tracker": 0})


def _forever(loader: Loader) -> Iterator[Batch]:
    """Goes through the loader again and again; each pass shuffles anew."""
    while True:
        yield from loader
