"""Aggregators that limit the influence of hostile clients, or damp updates on which clients disagree.

Papers: Yin et al., Byzantine-robust distributed learning, ICML 2018; Blanchard et al., Machine learning with
adversaries: Byzantine tolerant gradient descent, NeurIPS 2017; Sun et al., Can you really backdoor federated learning?,
2019; Tenison et al., Gradient masked averaging for federated learning, TMLR 2023.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch

from fedvlp.core.aggregation.base import Aggregator, OuterAggregator, WeightedMean, cast_like, stack_uploads
from fedvlp.core.aggregation.privacy import clip_to_norm, joint_norm, subtract
from fedvlp.core.state import State, weighted_mean
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import ClosedFraction, NonNegativeInt, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class CoordinateMedian(Aggregator):
    """Median over clients of each coordinate, counting each client once (Yin et al. 2018, Definition 1).

    For an even number of clients it is the mean of the two middle values. If fewer than half of the clients are
    hostile, each coordinate is between values of honest clients. Two clients have no middle, so it needs three.

    >>> states = [{"p": torch.tensor([value])} for value in (1.0, 900.0, 2.0)]
    >>> CoordinateMedian().combine(states, [1, 1, 1], {})
    {'p': tensor([2.])}
    """

    min_clients = 3

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Compute the median of each coordinate."""
        return _trimmed_mean(states, (len(states) - 1) // 2)


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """Mean over clients of each coordinate without the largest and smallest values (Yin et al. 2018, Definition 2).

    Each client counts once. If the number of hostile clients is at most the number trimmed at one end, each coordinate
    is between values of honest clients.

    Args:
        share: Share of the clients to trim at each end, rounded down to whole clients, in (0, 0.5).

    >>> states = [{"p": torch.tensor([value])} for value in (1.0, 900.0, 2.0, 4.0)]
    >>> TrimmedMean(share=0.25).combine(states, [1, 1, 1, 1], {})
    {'p': tensor([3.])}
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise UserError(f"TrimmedMean needs a share in (0, 0.5) to trim at each end; got {self.share}.")

    @property
    def min_clients(self) -> int:
        """The smallest number of clients at which ``share`` trims one. With fewer it would be the plain mean."""
        return math.ceil(1 / Fraction(str(self.share)))

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Compute the trimmed mean of each coordinate."""
        # As a fraction, because 0.29 * 100 is less than 29 in floating point.
        return _trimmed_mean(states, math.floor(Fraction(str(self.share)) * len(states)))


def _trimmed_mean(states: Sequence[State], trimmed: int) -> State:
    means: State = {}
    for name, values in stack_uploads(states).items():
        ordered = values.sort(dim=0).values  # [clients, ...]
        means[name] = ordered[trimmed : len(states) - trimmed].mean(dim=0)
    return cast_like(means, states[0])


@dataclass(frozen=True)
class Krum(Aggregator):
    """The upload with the smallest distances to its nearest others (Blanchard et al. 2017, Section 4), without weights.

    Args:
        byzantine: Number f of hostile clients that it tolerates, >= 0. It needs 2 f + 3 clients.

    >>> states = [{"p": torch.tensor([value])} for value in (1.0, 900.0, 2.0, 4.0, 2.5)]
    >>> Krum(byzantine=1).combine(states, [1] * 5, {})
    {'p': tensor([2.])}
    """

    byzantine: NonNegativeInt

    @property
    def min_clients(self) -> int:
        """The minimum number of clients, 2 f + 3."""
        return 2 * self.byzantine + 3

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Select one upload."""
        return dict(states[_rank_by_distance(states, self.byzantine)[0]])


@dataclass(frozen=True)
class MultiKrum(Krum):
    """Unweighted mean of the m uploads with the smallest scores (Blanchard et al. 2017, Section 4).

    An upload's score is the sum of its squared distances to the n - f - 2 nearest others, over all tensors that are
    combined together. Ties go to the client with the smaller id.

    Args:
        byzantine: Number f of hostile clients that it tolerates, >= 0. It needs 2 f + 3 clients.
        selected: Number m of uploads to average, >= 1. It needs m + f clients.

    >>> states = [{"p": torch.tensor([value])} for value in (1.0, 900.0, 2.0, 4.0, 2.5)]
    >>> MultiKrum(byzantine=1, selected=2).combine(states, [1] * 5, {})
    {'p': tensor([2.2500])}
    """

    selected: PositiveInt

    @property
    def min_clients(self) -> int:
        """The minimum number of clients, 2 f + 3 or m + f if that is more."""
        return max(2 * self.byzantine + 3, self.selected + self.byzantine)

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Average the selected uploads."""
        selected = _rank_by_distance(states, self.byzantine)[: self.selected]
        # In the order of clients, because rounding depends on it.
        uploads = stack_uploads([states[index] for index in sorted(selected)])
        return cast_like({name: values.mean(dim=0) for name, values in uploads.items()}, states[0])


def _rank_by_distance(states: Sequence[State], byzantine: int) -> list[int]:
    """Sort client indices by ascending score, ties by index."""
    by_tensor = []
    for values in stack_uploads(states).values():
        rows = values.flatten(1).double()  # because squares may be large
        # Not as |a|^2 + |b|^2 - 2 a b, which loses precision if uploads are close to each other.
        by_tensor.append(torch.stack([(rows - row).square().sum(dim=1) for row in rows]))
    distances = torch.stack(by_tensor).sum(dim=0)  # squared, [clients, clients]
    # A client is not its own neighbour.
    distances.fill_diagonal_(torch.inf)
    nearest = distances.sort(dim=1).values[:, : len(states) - byzantine - 2]
    return nearest.sum(dim=1).argsort(stable=True).tolist()


@dataclass(frozen=True)
class NormClipping(OuterAggregator):
    """Norm clipping of updates, followed by another aggregator.

    A client's update d is its upload minus the tensors that it started from, over all tensors that are combined
    together. It is replaced by d / max(1, |d| / max_norm) (Sun et al. 2019, Section 3).

    Args:
        max_norm: Largest Euclidean norm of an update, > 0.
        inner: The aggregator that combines the clipped updates; the weighted mean if not given.

    >>> states = [{"p": torch.tensor([3.0, 4.0])}, {"p": torch.tensor([0.0, 1.0])}]
    >>> NormClipping(max_norm=1.0).combine(states, [1, 1], {"p": torch.zeros(2)})
    {'p': tensor([0.3000, 0.9000])}
    """

    max_norm: PositiveFloat
    inner: Aggregator = field(default_factory=WeightedMean)

    def aggregate(
        self, states: Sequence[State], weights: Sequence[float], before: State, memory: State
    ) -> tuple[State, State]:
        """Clip the updates and combine them with the inner aggregator."""
        clipped: list[State] = []
        for state in states:
            update = subtract(state, before)
            # Short updates stay exact, because adding the difference again would round them.
            if joint_norm(update) > self.max_norm:
                moves = clip_to_norm(update, self.max_norm)
                state = {name: (before[name].double() + move).to(state[name].dtype) for name, move in moves.items()}
            clipped.append(state)
        return self.inner.aggregate(clipped, weights, before, memory)


@dataclass(frozen=True)
class FedGMA(Aggregator):
    """The mean update, damped in coordinates on which clients disagree (Tenison et al. 2023, Algorithm 1).

    The agreement A = |mean_k sign(Delta_k)| counts each client once. The mask m is 1 where A >= tau and A elsewhere.
    The step w <- w + eta m * mean_k Delta_k uses the clients' weights. With tau = 0, eta = 1 it is the weighted mean.

    Args:
        agreement: tau, in [0, 1]. For ten clients, 0.8 means nine in one direction and one in the other.
        learning_rate: eta, > 0.

    >>> states = [{"p": torch.tensor([1.0, 1.0])}, {"p": torch.tensor([3.0, -3.0])}]
    >>> FedGMA(0.5).combine(states, [1, 1], {"p": torch.zeros(2)})
    {'p': tensor([2., 0.])}
    """

    agreement: ClosedFraction = 0.4
    learning_rate: PositiveFloat = 1.0

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Take the masked step from ``before``."""
        mean = weighted_mean(states, weights)
        after: State = {}
        for name, values in stack_uploads(states).items():
            start = before[name].float()
            agreement = torch.sign(values - start).mean(0).abs()
            mask = torch.where(agreement >= self.agreement, torch.ones_like(agreement), agreement)
            value = mean[name].float()
            # Equal to start + eta m step, but exactly the mean if eta m is 1.
            after[name] = value + (self.learning_rate * mask - 1) * (value - start)
        return cast_like(after, mean)
