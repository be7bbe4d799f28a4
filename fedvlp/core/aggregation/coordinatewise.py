"""Robust rules that look at each number by itself (Yin et al., Byzantine-robust distributed learning, ICML 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from fedvlp.core.aggregation.base import AggregationRule, like, stacked
from fedvlp.core.state import State
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class CoordinateMedian(AggregationRule):
    """Median over clients of each number, each client counted once (Yin et al. 2018, Definition 1).

    Of an even number of clients it is the mean of the two in the middle. While fewer than half of the clients are
    hostile, each number lies between those of honest clients. Two clients have no middle, so it needs three.

    >>> states = [{"p": torch.tensor([value])} for value in (1.0, 900.0, 2.0)]
    >>> CoordinateMedian().combine(states, [1, 1, 1], {})
    {'p': tensor([2.])}
    """

    @property
    def min_clients(self) -> int:
        """Three: of fewer the median is the mean."""
        return 3

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Returns the median of each number."""
        return _middle(states, (len(states) - 1) // 2)


@dataclass(frozen=True)
class TrimmedMean(AggregationRule):
    """Mean over clients of each number without the largest and the smallest (Yin et al. 2018, Definition 2).

    Each client is counted once. While no more clients are hostile than are left out at one end, each number lies
    between those of honest clients.

    Args:
        share: Share of the clients that is left out at each end, rounded down to whole clients, in (0, 0.5).

    >>> states = [{"p": torch.tensor([value])} for value in (1.0, 900.0, 2.0, 4.0)]
    >>> TrimmedMean(share=0.25).combine(states, [1, 1, 1, 1], {})
    {'p': tensor([3.])}
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        """Refuses a share that leaves out nobody or everybody."""
        if not 0 < self.share < 0.5:
            raise UserError(f"TrimmedMean needs a share in (0, 0.5) to leave out at each end; got {self.share}.")

    @property
    def min_clients(self) -> int:
        """The fewest clients of whom the share is a whole one; of fewer it is the mean."""
        return math.ceil(1 / Fraction(str(self.share)))

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Returns the mean of what is left of each number."""
        # As a fraction, since 0.29 * 100 is less than 29 in floating point.
        return _middle(states, math.floor(Fraction(str(self.share)) * len(states)))


def _middle(states: Sequence[State], left_out: int) -> State:
    """Returns the mean of each number over clients, without the ``left_out`` largest and smallest."""
    return like({name: _middle_of(values, left_out) for name, values in stacked(states).items()}, states[0])


def _middle_of(values: Tensor, left_out: int) -> Tensor:
    """Returns [...] of values [clients, ...]."""
    ordered = values.sort(dim=0).values
    return torch.mean(ordered[left_out : len(values) - left_out], dim=0)
