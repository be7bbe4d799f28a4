"""Moves each number by as much as clients agree on its direction.

Paper: Tenison et al., Gradient masked averaging for federated learning, TMLR 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedvlp.core.aggregation.base import Aggregator, cast_like, stacked
from fedvlp.core.state import State, weighted_mean
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class FedGMA(Aggregator):
    """The mean update, in which numbers that clients move to and fro are held back (Algorithm 1).

    A = |mean_k sign(Delta_k)| with each client counted once, the mask m is 1 where A >= tau and A elsewhere, and
    w <- w + eta m * mean_k Delta_k with the clients' weights. With tau = 0 and eta = 1 it is the weighted mean.

    Args:
        agreement: tau, in [0, 1]; 0.8 of ten clients are nine in one direction and one in the other.
        learning_rate: eta, above 0.

    >>> states = [{"p": torch.tensor([1.0, 1.0])}, {"p": torch.tensor([3.0, -3.0])}]
    >>> FedGMA(0.5).combine(states, [1, 1], {"p": torch.zeros(2)})
    {'p': tensor([2., 0.])}
    """

    agreement: float = 0.4
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        """Refuses what is no share and no rate."""
        if not 0 <= self.agreement <= 1:
            raise UserError(f"FedGMA needs an agreement in [0, 1]; got {self.agreement}.")
        if not 0 < self.learning_rate < math.inf:
            raise UserError(f"FedGMA needs a learning_rate above 0; got {self.learning_rate}.")

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Returns the masked step from ``before``."""
        mean = weighted_mean(states, weights)
        after: State = {}
        for name, values in stacked(states).items():
            start = before[name].float()
            agreement = torch.sign(values - start).mean(0).abs()
            mask = torch.where(agreement >= self.agreement, torch.ones_like(agreement), agreement)
            value = mean[name].float()
            # Equal to start + eta m step, and exactly the mean where the whole step is taken.
            after[name] = value + (self.learning_rate * mask - 1) * (value - start)
        return cast_like(after, mean)
