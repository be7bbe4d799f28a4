"""Server optimizers, which use the mean update as a gradient and remember moments of earlier rounds.

Paper: Reddi et al., Adaptive federated optimization, ICLR 2021; Algorithm 2 is FedOpt with FedAdam and FedYogi. Server
momentum: Hsu et al., Measuring the effects of non-identical data distribution, 2019 (FedAvgM).

Symbols: x_t -> ``before``; pseudo-gradient Delta_t, the inner aggregator's result minus x_t -> ``step``; m_t, v_t ->
memory; eta -> ``learning_rate``; beta_1, beta_2 -> ``beta1``, ``beta2``; tau -> ``tau``.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedvlp.core.aggregation.base import Aggregator, OuterAggregator, WeightedMean
from fedvlp.core.state import State, add_prefix, strip_prefix
from fedvlp.utils.ranges import FractionBelowOne, PositiveFloat


class ServerOptimizer(OuterAggregator):
    """An optimizer step along the difference between an inner aggregator's result and the tensors before the round.

    Subclasses are frozen dataclasses with the field ``inner``. Their memory is in float32, under
    ``moments/<tensor>/<moment>``; the inner aggregator's memory is under ``inner/``.
    """

    inner: Aggregator

    @property
    def is_linear(self) -> bool:
        """Whether the inner aggregator is linear. The server's step needs no single uploads."""
        return self.inner.is_linear

    @abstractmethod
    def follow(self, step: Tensor, moments: State) -> tuple[Tensor, State]:
        """Compute the change of a tensor, and its new moments."""
        ...

    def aggregate(
        self, states: Sequence[State], weights: Sequence[float], before: State, memory: State
    ) -> tuple[State, State]:
        """Take a step of the optimizer; return the new state and the moments."""
        combined, inner_memory = self.inner.aggregate(states, weights, before, strip_prefix(memory, "inner"))
        after: State = {}
        new_memory = add_prefix(inner_memory, "inner")
        for name, value in combined.items():
            step = value.float() - before[name].float()
            change, moments = self.follow(step, strip_prefix(memory, f"moments/{name}"))
            # Equal to before + change, but exactly the combined value if the change equals the step.
            after[name] = (value.float() + (change - step)).to(value.dtype)
            new_memory |= add_prefix(moments, f"moments/{name}")
        return after, new_memory


@dataclass(frozen=True)
class ServerMomentum(ServerOptimizer):
    """Gradient descent with momentum on the server: v <- beta v + Delta, x <- x + eta v (Hsu et al. 2019, FedAvgM).

    With a learning rate of 1 and no momentum it equals the inner aggregator.

    Args:
        learning_rate: eta, > 0.
        momentum: beta, in [0, 1).
        inner: The aggregator that combines the uploads; the weighted mean if not given.

    >>> server = ServerMomentum(momentum=0.5)
    >>> before = {"p": torch.zeros(1)}
    >>> first, memory = server.aggregate([{"p": torch.tensor([4.0])}], [1], before, {})
    >>> server.aggregate([{"p": torch.tensor([5.0])}], [1], first, memory)[0]
    {'p': tensor([7.])}
    """

    learning_rate: PositiveFloat = 1.0
    momentum: FractionBelowOne = 0.9
    inner: Aggregator = field(default_factory=WeightedMean)

    def follow(self, step: Tensor, moments: State) -> tuple[Tensor, State]:
        """Compute eta v and v."""
        velocity = step + self.momentum * moments["velocity"] if moments else step
        return self.learning_rate * velocity, {"velocity": velocity}


@dataclass(frozen=True)
class FedAdam(ServerOptimizer):
    """Adam on the server (Reddi et al. 2021, Algorithm 2), without bias correction, as in the paper.

    Start from m = 0 and v = tau^2. In each round, m <- beta_1 m + (1 - beta_1) Delta, v <- beta_2 v + (1 - beta_2)
    Delta^2, x <- x + eta m / (sqrt(v) + tau).

    Args:
        learning_rate: eta, > 0: about the change of each value in a round once updates agree.
        beta1: Decay of the mean update, in [0, 1).
        beta2: Decay of the mean squared update, in [0, 1).
        tau: Adaptivity, > 0; a larger value adapts less.
        inner: The aggregator that combines the uploads; the weighted mean if not given.

    >>> server = FedAdam(learning_rate=0.1, beta1=0.0, beta2=0.0, tau=0.5)
    >>> server.combine([{"p": torch.tensor([4.5])}], [1], {"p": torch.zeros(1)})
    {'p': tensor([0.0900])}
    """

    learning_rate: PositiveFloat = 0.01
    beta1: FractionBelowOne = 0.9
    beta2: FractionBelowOne = 0.99
    tau: PositiveFloat = 1e-3
    inner: Aggregator = field(default_factory=WeightedMean)

    def follow(self, step: Tensor, moments: State) -> tuple[Tensor, State]:
        """Compute eta m / (sqrt(v) + tau), m and v."""
        first = moments["first"] if moments else torch.zeros_like(step)
        second = moments["second"] if moments else torch.full_like(step, self.tau**2)
        first = self.beta1 * first + (1 - self.beta1) * step
        second = self.second_moment(second, step.square())
        return self.learning_rate * first / (second.sqrt() + self.tau), {"first": first, "second": second}

    def second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        """Compute beta_2 v + (1 - beta_2) Delta^2."""
        return self.beta2 * second + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """Yogi on the server (Reddi et al. 2021, Algorithm 2): FedAdam with v <- v - (1 - beta_2) D^2 sign(v - D^2).

    The second moment follows rare large updates as fast as FedAdam's and forgets them more slowly.

    Args:
        learning_rate: eta, > 0: about the change of each value in a round once updates agree.
        beta1: Decay of the mean update, in [0, 1).
        beta2: 1 minus the rate at which the second moment follows, in [0, 1).
        tau: Adaptivity, > 0; a larger value adapts less.
        inner: The aggregator that combines the uploads; the weighted mean if not given.

    >>> server = FedYogi(learning_rate=0.1, beta1=0.0, beta2=0.0, tau=0.5)
    >>> server.combine([{"p": torch.tensor([4.5])}], [1], {"p": torch.zeros(1)})
    {'p': tensor([0.0895])}
    """

    def second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        """Compute v - (1 - beta_2) Delta^2 sign(v - Delta^2)."""
        return second - (1 - self.beta2) * square * torch.sign(second - square)
