"""A mean in which no client pulls farther than another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedvlp import Aggregator, State
from fedvlp.core.state import weighted_mean


@dataclass(frozen=True)
class EqualNormMean(Aggregator):
    """Gives all clients' updates the same length, the median of their lengths, and takes the weighted mean.

    >>> before = {"prompt": torch.zeros(1)}
    >>> sent = [{"prompt": torch.tensor([value])} for value in (1.0, 2.0, 900.0)]
    >>> EqualNormMean().combine(sent, [1, 1, 1], before)
    {'prompt': tensor([2.])}
    """

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Returns the mean; a client that did not move stays where it was."""
        lengths = [_length(state, before) for state in states]
        median = torch.tensor(lengths).median().item()
        equal = []
        for state, length in zip(states, lengths, strict=True):
            equal.append(_moved(state, before, median / length) if length else state)
        return weighted_mean(equal, weights)


def _length(state: State, before: State) -> float:
    """Returns the Euclidean length of an update, all its tensors taken together."""
    moves = [(value.float() - before[name].float()).flatten() for name, value in state.items()]
    return float(torch.cat(moves).norm())


def _moved(state: State, before: State, scale: float) -> State:
    """Returns an upload with its update scaled, in the upload's number format."""
    moved = {}
    for name, value in state.items():
        start = before[name].float()
        moved[name] = (start + scale * (value.float() - start)).to(value.dtype)
    return moved
