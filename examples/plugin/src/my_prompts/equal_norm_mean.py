"""A mean of updates with equal norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedvlp import Aggregator, State
from fedvlp.core.state import weighted_mean


@dataclass(frozen=True)
class EqualNormMean(Aggregator):
    """Weighted mean of updates that are all scaled to the median of their norms.

    >>> before = {"prompt": torch.zeros(1)}
    >>> uploads = [{"prompt": torch.tensor([value])} for value in (1.0, 2.0, 900.0)]
    >>> EqualNormMean().combine(uploads, [1, 1, 1], before)
    {'prompt': tensor([2.])}
    """

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Compute the mean. An update of norm 0 stays unchanged."""
        norms = [_norm(state, before) for state in states]
        median = torch.tensor(norms).median().item()
        scaled = []
        for state, norm in zip(states, norms, strict=True):
            scaled.append(_scale_update(state, before, median / norm) if norm else state)
        return weighted_mean(scaled, weights)


def _norm(state: State, before: State) -> float:
    """Compute the Euclidean norm of an update over all its tensors."""
    moves = [(value.float() - before[name].float()).flatten() for name, value in state.items()]
    return float(torch.cat(moves).norm())


def _scale_update(state: State, before: State, scale: float) -> State:
    """Scale the update of an upload, in the upload's dtype."""
    scaled = {}
    for name, value in state.items():
        start = before[name].float()
        scaled[name] = (start + scale * (value.float() - start)).to(value.dtype)
    return scaled
