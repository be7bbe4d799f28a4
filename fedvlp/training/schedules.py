"""Learning rates over rounds: pure functions of a round's number, chosen on the command line by their short names."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any

from fedvlp.utils.ranges import FractionAboveZero, NonNegativeInt, PositiveFloat


class Schedule(ABC):
    """A factor on the learning rate of every optimizer of a round; a subclass is a frozen dataclass.

    Attributes:
        warmup_rounds: rounds at the start that train with ``warmup_factor``; the decay is counted from their end.
        warmup_factor: factor in these rounds.
        needs_rounds: whether a factor depends on the number of all rounds.
    """

    warmup_rounds: NonNegativeInt
    warmup_factor: PositiveFloat
    needs_rounds = False

    def factor(self, round: int, rounds: int) -> float:
        """Returns the factor on the learning rate in a round.

        Args:
            round: number of finished rounds, from 0.
            rounds: number of all rounds.
        """
        if round < self.warmup_rounds:
            return self.warmup_factor
        return self.decay(round - self.warmup_rounds, rounds)

    @abstractmethod
    def decay(self, round: int, rounds: int) -> float:
        """Returns the factor in a round that is counted from the end of the warm-up."""


@dataclass(frozen=True)
class Constant(Schedule):
    """The optimizer's own learning rate, after a warm-up.

    Args:
        warmup_rounds: Rounds at the start that train with ``warmup_factor``.
        warmup_factor: Factor on the learning rate in these rounds, > 0.

    >>> [Constant(warmup_rounds=1, warmup_factor=0.25).factor(r, 3) for r in range(3)]
    [0.25, 1.0, 1.0]
    """

    warmup_rounds: NonNegativeInt = 1
    warmup_factor: PositiveFloat = 0.1

    def decay(self, round: int, rounds: int) -> float:
        """Returns 1."""
        return 1.0


@dataclass(frozen=True)
class ExponentialDecay(Schedule):
    """The learning rate falls by the same factor in every round: gamma^r.

    Args:
        gamma: Factor from one round to the next, in (0, 1].
        warmup_rounds: Rounds at the start that train with ``warmup_factor``.
        warmup_factor: Factor on the learning rate in these rounds, > 0.

    >>> [ExponentialDecay(gamma=0.5).factor(r, 4) for r in range(4)]
    [1.0, 0.5, 0.25, 0.125]
    """

    gamma: FractionAboveZero
    warmup_rounds: NonNegativeInt = 0
    warmup_factor: PositiveFloat = 0.1

    def decay(self, round: int, rounds: int) -> float:
        """Returns gamma^r."""
        return float(self.gamma**round)


@dataclass(frozen=True)
class CosineDecay(Schedule):
    """The learning rate falls along half a cosine: (1 + cos(pi r / R)) / 2, the schedule of CoOp.

    CoOp warms up for one epoch at 1e-5, which is 0.005 of its rate, and counts r from the end of the warm-up.

    Args:
        warmup_rounds: Rounds at the start that train with ``warmup_factor``.
        warmup_factor: Factor on the learning rate in these rounds, > 0.

    >>> [round(CosineDecay().factor(r, 4), 3) for r in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """

    warmup_rounds: NonNegativeInt = 0
    warmup_factor: PositiveFloat = 0.1
    needs_rounds = True

    def decay(self, round: int, rounds: int) -> float:
        """Returns (1 + cos(pi r / R)) / 2."""
        return (1 + math.cos(math.pi * round / rounds)) / 2


def describe_schedule(schedule: Schedule | None, rounds: int) -> dict[str, Any] | None:
    """Returns what must be equal for a run to be gone on from; the number of rounds where factors depend on it.

    >>> describe_schedule(ExponentialDecay(0.5), 9)
    {'class': 'ExponentialDecay', 'gamma': 0.5, 'warmup_rounds': 0, 'warmup_factor': 0.1}
    """
    if schedule is None:
        return None
    options: dict[str, Any] = asdict(schedule)  # type: ignore[call-overload]
    return {"class": type(schedule).__name__, **options, **({"rounds": rounds} if schedule.needs_rounds else {})}
