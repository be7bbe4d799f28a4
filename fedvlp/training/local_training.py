"""How long a client trains in one phase: its batches, counted in passes or in optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import chain, count, islice
from typing import Any

from fedvlp.core.protocols import Batch, Loader
from fedvlp.core.state import Client
from fedvlp.training.add_ons import AddOn, ClipGradients, describe_add_on
from fedvlp.training.schedules import Schedule, describe_schedule
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Epochs, PositiveFloat, PositiveInt, check_range


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains in one phase of a round.

    Args:
        epochs: Passes over a client's data in each phase; 0.5 communicates after every half pass.
        steps: Optimizer steps of a client in each phase, instead of epochs.
        schedule: Learning rate over rounds, such as ``ExponentialDecay`` or ``CosineDecay``; constant if not given.
        reset_optimizer: Make each client's optimizer from scratch each round; else its moments stay on the client.
        add_ons: What else local training does and exchanges, such as ``FedProx``, ``Scaffold`` or ``FedDyn``, whatever
            the method; several are at work in their order.
        gradient_clip_val: Shorten the gradient of each step, of all that a client trains together, to this norm;
            unchanged if not given.
    """

    epochs: Epochs = 1
    steps: PositiveInt | None = None
    schedule: Schedule | None = None
    reset_optimizer: bool = True
    add_ons: AddOn | list[AddOn] | None = None
    gradient_clip_val: PositiveFloat | None = None

    def __post_init__(self) -> None:
        """Checks the ranges, and refuses both kinds of length at once."""
        check_range("local.epochs", self.epochs, Epochs)
        check_range("local.steps", self.steps, PositiveInt)
        check_range("local.gradient_clip_val", self.gradient_clip_val, PositiveFloat)
        if self.steps is not None and self.epochs != 1:
            raise UserError(
                f"Expected local.steps or local.epochs, got both ({self.steps} and {self.epochs:g}). Leave one out."
            )
        for add_on in self.every_add_on if self.gradient_clip_val is not None else ():
            if add_on.needs_gradients:
                raise UserError(
                    f"{type(add_on).__name__} needs gradients unchanged. Leave local.gradient_clip_val out."
                )

    @property
    def every_add_on(self) -> tuple[AddOn, ...]:
        """The add-ons in their order; the clipping of gradients is the last."""
        given = self.add_ons if isinstance(self.add_ons, (list, tuple)) else [self.add_ons]
        clipping = None if self.gradient_clip_val is None else ClipGradients(self.gradient_clip_val)
        return tuple(add_on for add_on in (*given, clipping) if add_on is not None)

    def batches(self, loader_of: Callable[[int], Loader], round: int) -> tuple[Iterator[Batch], int]:
        """Returns a client's batches in one phase of a round, and how many they are.

        Whole epochs and steps shuffle anew in each round. A fraction of an epoch takes the next batches of an endless
        sequence of passes, so that no image is left out or seen twice before a pass is over. Where a client stands in
        that sequence follows from the round alone, whether it took part in the rounds before or not.

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

    def num_steps(self, client: Client, batch_size: int) -> int:
        """Returns how many optimizer steps a client takes in one phase, from the number of its images.

        Args:
            client: who trains.
            batch_size: images in a batch.
        """
        return num_steps(-(-client.num_examples // batch_size), self.epochs, self.steps)

    def factor(self, round: int, rounds: int) -> float:
        """Returns the factor on the learning rates in a round.

        Args:
            round: number of finished rounds.
            rounds: number of all rounds.
        """
        return 1.0 if self.schedule is None else self.schedule.factor(round, rounds)

    def describe(self, rounds: int) -> dict[str, Any]:
        """Returns the options that must be equal for a run to be continued, by their names on the command line."""
        described: dict[str, Any] = {
            "local_epochs": self.epochs,
            "local_steps": self.steps,
            "reset_optimizer": self.reset_optimizer,
            "schedule": describe_schedule(self.schedule, rounds),
        }
        # Left out where it is not given, so that a run is described as it was before there was a choice.
        if self.gradient_clip_val is not None:
            described["gradient_clip_val"] = self.gradient_clip_val
        if self.add_ons:
            every = [add_on for add_on in self.every_add_on if not isinstance(add_on, ClipGradients)]
            described["add_ons"] = [describe_add_on(add_on, rounds) for add_on in every]
        return described


@cache
def num_steps(num_batches: int, epochs: float, steps: int | None) -> int:
    """Returns how many optimizer steps a client takes in one phase; a begun batch counts as a whole one.

    >>> num_steps(30, 0.1, None), num_steps(5, 0.5, None), num_steps(5, 2, None), num_steps(5, 2, 7)
    (3, 3, 10, 7)
    """
    return math.ceil(Fraction(str(epochs)) * num_batches) if steps is None else steps


def _forever(loader: Loader) -> Iterator[Batch]:
    """Goes through the loader again and again; each pass shuffles anew."""
    while True:
        yield from loader
