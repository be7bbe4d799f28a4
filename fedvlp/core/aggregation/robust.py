"""Aggregators that bound what hostile clients can do, or hold back what clients disagree about.

Papers: Yin et al., Byzantine-robust distributed learning, ICML 2018; Blanchard et al., Machine learning with
adversaries: Byzantine tolerant gradient descent, NeurIPS 2017; Sun et al., Can you really backdoor federated learning?,
2019; Tenison et al., Gradient masked averaging for federated learning, TMLR 2023.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from jaxtyping import Float
from torch import Tensor

from fedvlp.core.aggregation.base import Aggregator, OuterAggregator, WeightedMean, cast_like, stacked
from fedvlp.core.aggregation.privacy import clip_to_norm, norm_of, update_of
from fedvlp.core.state import State, weighted_mean
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import ClosedFraction, NonNegativeInt, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class CoordinateMedian(Aggregator):
    """Median over clients of each number, each client counted once (Yin et al. 2018, Definition 1).

    Of an even number of clients it is the mean of the two in the middle. While fewer than half of the clients are
    hostile, each number is between those of honest clients. Two clients have no middle, so it needs three.

    >>> states = [{"p": torch.tensor([value])} for value in (1.0, 900.0, 2.0)]
    >>> CoordinateMedian().combine(states, [1, 1, 1], {})
    {'p': tensor([2.])}
    """

    min_clients = 3

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """The median of each number."""
        return _trimmed_mean(states, (len(states) - 1) // 2)


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """Mean over clients of each number without the largest and the smallest (Yin et al. 2018, Definition 2).

    Each client is counted once. While no more clients are hostile than are left out at one end, each number is between
    those of honest clients.

    Args:
        share: Share of the clients that is left out at each end, rounded down to whole clients, in (0, 0.5).

    >>> states = [{"p": torch.tensor([value])} for value in (1.0, 900.0, 2.0, 4.0)]
    >>> TrimmedMean(share=0.25).combine(states, [1, 1, 1, 1], {})
    {'p': tensor([3.])}
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise UserError(f"TrimmedMean needs a share in (0, 0.5) to leave out at each end; got {self.share}.")

    @property
    def min_clients(self) -> int:
        """The fewest clients of whom the share is a whole one; of fewer it is the mean."""
        return math.ceil(1 / Fraction(str(self.share)))

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """The mean of what is left of each number."""
        # As a fraction, since 0.29 * 100 is less than 29 in floating point.
        return _trimmed_mean(states, math.floor(Fraction(str(self.share)) * len(states)))


def _trimmed_mean(states: Sequence[State], left_out: int) -> State:
    """The mean of each number over clients, without the ``left_out`` largest and smallest."""
    means: State = {}
    for name, values in stacked(states).items():
        ordered = values.sort(dim=0).values  # [clients, ...]
        means[name] = ordered[left_out : len(states) - left_out].mean(dim=0)
    return cast_like(means, states[0])


@dataclass(frozen=True)
class Krum(Aggregator):
    """The one upload whose nearest others are nearest (Blanchard et al. 2017, Section 4); weights do not count.

    Args:
        byzantine: The number f of hostile clients that it withstands, at least 0; 2 f + 3 clients are needed.

    >>> states = [{"p": torch.tensor([value])} for value in (1.0, 900.0, 2.0, 4.0, 2.5)]
    >>> Krum(byzantine=1).combine(states, [1] * 5, {})
    {'p': tensor([2.])}
    """

    byzantine: NonNegativeInt

    @property
    def min_clients(self) -> int:
        """Clients 2 f + 3."""
        return 2 * self.byzantine + 3

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """The selected upload."""
        return dict(states[_nearest_to_others(states, self.byzantine)[0]])


@dataclass(frozen=True)
class MultiKrum(Krum):
    """Mean of the m uploads whose nearest others are nearest, each counted once (Blanchard et al. 2017, Section 4).

    An upload's score is the sum of its squared distances to the n - f - 2 nearest others, over all tensors that are
    combined together. Of equal scores the client with the smaller id is taken.

    Args:
        byzantine: The number f of hostile clients that it withstands, at least 0; 2 f + 3 clients are needed.
        selected: The number m of uploads that are averaged, at least 1; m + f clients are needed.

    >>> states = [{"p": torch.tensor([value])} for value in (1.0, 900.0, 2.0, 4.0, 2.5)]
    >>> MultiKrum(byzantine=1, selected=2).combine(states, [1] * 5, {})
    {'p': tensor([2.2500])}
    """

    selected: PositiveInt

    @property
    def min_clients(self) -> int:
        """Clients 2 f + 3, or m + f if that is more."""
        return max(2 * self.byzantine + 3, self.selected + self.byzantine)

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """The mean of the selected uploads."""
        selected = _nearest_to_others(states, self.byzantine)[: self.selected]
        # In the order of the clients, since rounding depends on it.
        uploads = stacked([states[index] for index in sorted(selected)])
        return cast_like({name: values.mean(dim=0) for name, values in uploads.items()}, states[0])


def _nearest_to_others(states: Sequence[State], byzantine: int) -> list[int]:
    """The positions of the clients, the smallest score first, of equal ones the first client."""
    uploads = stacked(states)
    distances = torch.stack([_squared_distances(values.flatten(1).double()) for values in uploads.values()]).sum(dim=0)
    # A client is not its own neighbour.
    distances.fill_diagonal_(torch.inf)
    nearest = distances.sort(dim=1).values[:, : len(states) - byzantine - 2]
    order: list[int] = nearest.sum(dim=1).argsort(stable=True).tolist()
    return order


def _squared_distances(values: Float[Tensor, "K numbers"]) -> Float[Tensor, "K K"]:
    """The squared distance of each client to each, of values in float64: far uploads' squares are large."""
    # Differences, and not |a|^2 + |b|^2 - 2 a b, which cancels where uploads are near each other.
    return torch.stack([(values - of_client).square().sum(dim=1) for of_client in values])


@dataclass(frozen=True)
class NormClipping(OuterAggregator):
    """Shortens updates that are longer than a limit, then lets another aggregator combine them.

    A client's update d is the difference of its upload from what it started from, over all tensors that are combined
    together; d / max(1, |d| / max_norm) is taken in its place (Sun et al. 2019, Section 3). Weights are the inner
    aggregator's matter.

    Args:
        max_norm: The longest update, as Euclidean norm, above 0.
        inner: The aggregator that combines the shortened updates; the weighted mean if not given.

    >>> states = [{"p": torch.tensor([3.0, 4.0])}, {"p": torch.tensor([0.0, 1.0])}]
    >>> NormClipping(max_norm=1.0).combine(states, [1, 1], {"p": torch.zeros(2)})
    {'p': tensor([0.3000, 0.9000])}
    """

    max_norm: PositiveFloat
    inner: Aggregator = field(default_factory=WeightedMean)

    def aggregate(
        self, states: Sequence[State], weights: Sequence[float], before: State, memory: State
    ) -> tuple[State, State]:
        """What the inner aggregator makes of the shortened updates, with its memory."""
        shortened: list[State] = []
        for state in states:
            update = update_of(state, before)
            # Adding a difference again would round an upload that need not change.
            if norm_of(update) > self.max_norm:
                moves = clip_to_norm(update, self.max_norm)
                state = {name: (before[name].double() + move).to(state[name].dtype) for name, move in moves.items()}
            shortened.append(state)
        return self.inner.aggregate(shortened, weights, before, memory)


@dataclass(frozen=True)
class FedGMA(Aggregator):
    """The mean update, in which numbers that clients move to and fro are held back (Tenison et al. 2023, Algorithm 1).

    A = |mean_k sign(Delta_k)| with each client counted once, the mask m is 1 where A >= tau and A elsewhere, and
    w <- w + eta m * mean_k Delta_k with the clients' weights. With tau = 0 and eta = 1 it is the weighted mean.

    Args:
        agreement: tau, in [0, 1]; 0.8 of ten clients are nine in one direction and one in the other.
        learning_rate: eta, above 0.

    >>> states = [{"p": torch.tensor([1.0, 1.0])}, {"p": torch.tensor([3.0, -3.0])}]
    >>> FedGMA(0.5).combine(states, [1, 1], {"p": torch.zeros(2)})
    {'p': tensor([2., 0.])}
    """

    agreement: ClosedFraction = 0.4
    learning_rate: PositiveFloat = 1.0

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """The masked step from ``before``."""
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
