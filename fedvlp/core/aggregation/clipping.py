"""Limits how far one client can pull, before another rule combines (Sun et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fedvlp.core.aggregation.base import AggregationRule, PrivacyGuarantee
from fedvlp.core.aggregation.client_noise import ClientNoise
from fedvlp.core.aggregation.mean import WeightedMean
from fedvlp.core.aggregation.updates import norm_of, shortened, update_of
from fedvlp.core.state import State, check_alike
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class NormClipping(AggregationRule):
    """Shortens updates that are longer than a limit, then lets another rule combine them.

    A client's update d is the difference of its upload from what it went on from, over all tensors that are combined
    together; d / max(1, |d| / max_norm) is taken in its place (Sun et al., Can you really backdoor federated learning?,
    2019, Section 3). Weights are the inner rule's matter.

    Args:
        max_norm: The longest update, as Euclidean norm, above 0.
        inner: The rule that combines the shortened updates; the weighted mean if not given.

    >>> import torch
    >>> states = [{"p": torch.tensor([3.0, 4.0])}, {"p": torch.tensor([0.0, 1.0])}]
    >>> NormClipping(max_norm=1.0).combine(states, [1, 1], {"p": torch.zeros(2)})
    {'p': tensor([0.3000, 0.9000])}
    """

    max_norm: float
    inner: AggregationRule = field(default_factory=WeightedMean)

    def __post_init__(self) -> None:
        """Refuses a limit that no update is within."""
        if not 0 < self.max_norm < math.inf:
            raise UserError(f"NormClipping needs a max_norm above 0; got {self.max_norm}.")

    @property
    def min_clients(self) -> int:
        """As many as the inner rule needs."""
        return self.inner.min_clients

    @property
    def guarantee(self) -> PrivacyGuarantee | None:
        """The inner rule's: a client's shortened update depends on that client alone."""
        return self.inner.guarantee

    @property
    def client_noise(self) -> ClientNoise | None:
        """The inner rule's."""
        return self.inner.client_noise

    def placed(self, num_clients: int, seed: int) -> NormClipping:
        """Returns the same with the inner rule in its place."""
        return replace(self, inner=self.inner.placed(num_clients, seed))

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Returns what the inner rule makes of the shortened updates."""
        return self.inner.combine(self._clipped(states, before), weights, before)

    def aggregate(
        self, states: Sequence[State], weights: Sequence[float], before: State, memory: State
    ) -> tuple[State, State]:
        """Returns the same, with the inner rule's memory."""
        return self.inner.aggregate(self._clipped(states, before), weights, before, memory)

    def _clipped(self, states: Sequence[State], before: State) -> list[State]:
        check_alike(states)
        return [clipped(state, before, self.max_norm) for state in states]


def clipped(state: State, before: State, max_norm: float) -> State:
    """Returns an upload whose difference from ``before`` has at most the norm; a shorter one comes back as it is."""
    update = update_of(state, before)
    if norm_of(update) <= max_norm:
        return state
    shorter = shortened(update, max_norm)
    return {name: (before[name].double() + move).to(state[name].dtype) for name, move in shorter.items()}
