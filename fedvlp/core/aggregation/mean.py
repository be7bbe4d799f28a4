"""The weighted mean, which strategies take where nothing else is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedvlp.core.aggregation.base import AggregationRule
from fedvlp.core.state import State, weighted_mean


@dataclass(frozen=True)
class WeightedMean(AggregationRule):
    """Mean over clients, weighted as the strategy says (McMahan et al. 2017, Algorithm 1).

    One client can move it anywhere.

    >>> import torch
    >>> WeightedMean().combine([{"p": torch.tensor([0.0])}, {"p": torch.tensor([3.0])}], [2, 1], {})
    {'p': tensor([1.])}
    """

    @property
    def is_linear(self) -> bool:
        """True: it is a weighted sum."""
        return True

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Returns sum_k w_k s_k / sum_k w_k."""
        return weighted_mean(states, weights)
