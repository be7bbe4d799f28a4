"""Strategies, the server side of a phase: the clients' downloads, and the next server state from uploads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch

from fedvlp.core.aggregation.base import Aggregator, WeightedMean
from fedvlp.core.state import Client, ClientUpdate, ServerState, State, detached, matches_prefix, select

Names = str | tuple[str, ...]
"""One or several names or prefixes of tensors."""


class Strategy:
    """Server side of a phase. Subclasses are frozen dataclasses that override ``aggregate``.

    Its functions are deterministic and do not change their arguments. Updates are sorted by client id, because rounding
    of sums depends on the order. ``server.memory`` holds only the memory of the phase's strategy; a strategy inside
    :class:`ByName` sees only its own part.

    Attributes:
        uses_validation_loss: Whether to call ``after_validation`` after each evaluation of the federation.
    """

    uses_validation_loss: ClassVar[bool] = False

    def broadcast(self, server: ServerState, client: Client) -> State:
        """Choose the tensors that a client downloads before it trains; by default every shared tensor."""
        return server.shared

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Compute the server's state after the cohort's updates."""
        raise NotImplementedError(f"{type(self).__name__} has no aggregate().")

    def check(self, clients: Sequence[Client]) -> None:
        """Raise UserError, before training, if the uploads of these clients cannot be combined."""
        for strategy in self.nested().values():
            strategy.check(clients)

    def after_validation(self, server: ServerState, loss: float) -> ServerState:
        """Update the server's state after a round, given the source validation loss of its shared tensors.

        The loss is the mean cross-entropy of a domain's images, averaged over domains.
        """
        return server

    def nested(self) -> Mapping[Names, Strategy]:
        """Get the strategies inside this one by the names of their tensors; ``()`` means all tensors."""
        return {}

    def replace_nested(self, strategies: Mapping[Names, Strategy]) -> Strategy:
        """Replace the nested strategies."""
        return self

    @property
    def reduces_cohort(self) -> bool:
        """Whether uploads change the server only through aggregators of the whole cohort's uploads."""
        nested = self.nested().values()
        return bool(nested) and all(strategy.reduces_cohort for strategy in nested)

    @property
    def reducers(self) -> tuple[Reducer, ...]:
        """The reducers inside this strategy."""
        return tuple(reducer for strategy in self.nested().values() for reducer in strategy.reducers)

    def replace_aggregators(self, choose: Callable[[Reducer], Aggregator]) -> Strategy:
        """Replace the aggregator of each reducer inside this strategy."""
        nested = self.nested()
        return self.replace_nested({names: strategy.replace_aggregators(choose) for names, strategy in nested.items()})


class Reducer(Strategy):
    """A strategy that combines uploads with its ``aggregator``; subclasses are frozen dataclasses with that field."""

    aggregator: Aggregator

    def groups(self, clients: Sequence[Client], cohort_size: int) -> Mapping[str, int]:
        """Count the uploads that are combined in a round, by group; empty if uploads are kept apart."""
        return {"": cohort_size}

    @property
    def reducers(self) -> tuple[Reducer, ...]:
        """The strategy itself."""
        return (self,)

    def replace_aggregators(self, choose: Callable[[Reducer], Aggregator]) -> Strategy:
        """Replace the strategy's own aggregator."""
        this: Any = self  # every subclass is a dataclass
        return replace(this, aggregator=choose(self))


@dataclass(frozen=True)
class Wrapper(Strategy):
    """A strategy that adds a step to the strategy ``inner``, and otherwise behaves like it."""

    inner: Strategy

    def nested(self) -> Mapping[Names, Strategy]:
        """Get the inner strategy, which combines all tensors."""
        return {(): self.inner}

    def replace_nested(self, strategies: Mapping[Names, Strategy]) -> Strategy:
        """Replace the inner strategy."""
        return replace(self, inner=strategies[()])

    def broadcast(self, server: ServerState, client: Client) -> State:
        """Send the tensors that the inner strategy sends."""
        return self.inner.broadcast(server, client)


@dataclass(frozen=True)
class Local(Strategy):
    """No communication, the baseline that every federation must beat: trained tensors stay on the client."""

    reduces_cohort = True  # no upload changes the server

    def broadcast(self, server: ServerState, client: Client) -> State:
        """Send nothing."""
        return {}

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Leave the server's state unchanged."""
        return server


@dataclass(frozen=True)
class FedAvg(Reducer):
    """Weighted mean of the uploads (McMahan et al. 2017, Algorithm 1), or the result of another aggregator.

    Args:
        weighting: ``examples`` weights a client by its training images, ``uniform`` counts each client once.
        aggregator: Combines the uploads. Some aggregators ignore weights and count each client once.

    >>> server = ServerState.start({"prompt": torch.zeros(1)})
    >>> few = ClientUpdate(Client(0, 0, 10), {"prompt": torch.tensor([1.0])}, num_examples=10)
    >>> many = ClientUpdate(Client(1, 1, 30), {"prompt": torch.tensor([5.0])}, num_examples=30)
    >>> FedAvg().aggregate(server, [few, many]).shared
    {'prompt': tensor([4.])}
    >>> FedAvg("uniform").aggregate(server, [few, many]).shared
    {'prompt': tensor([3.])}
    """

    weighting: Literal["examples", "uniform"] = "examples"
    aggregator: Aggregator = field(default_factory=WeightedMean)

    reduces_cohort = True  # all uploads go through the aggregator

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Replace the uploaded tensors by their aggregate, unless the aggregator needs more uploads."""
        # In a federation the loop has already reported too few uploads.
        if len(updates) < self.aggregator.min_clients:
            return server
        weights = [self.weight(update) for update in updates]
        states = [update.state for update in updates]
        shared, memory = self.aggregator.aggregate(states, weights, server.shared, server.memory)
        return server.updated(shared, **memory)

    def weight(self, update: ClientUpdate) -> float:
        """Get an update's weight: set by an add-on, or the client's number of images, or 1."""
        if update.weight is not None:
            return update.weight
        return update.num_examples if self.weighting == "examples" else 1


@dataclass(frozen=True)
class ByName(Strategy):
    """Different strategies for different tensors of the same upload, applied one after another.

    Args:
        parts: Maps one or several names to the strategy that combines these tensors.

    >>> from fedvlp.core.slots import Slots
    >>> server = ServerState.start({"visual": torch.zeros(1), "text": torch.zeros(2, 1)})
    >>> upload = {"visual": torch.tensor([7.0]), "text": torch.tensor([9.0])}
    >>> strategy = ByName({"visual": FedAvg(), "text": Slots(by="domain")})
    >>> strategy.aggregate(server, [ClientUpdate(Client(0, 1, 5), upload, 5)]).shared["text"].tolist()
    [[0.0], [9.0]]
    """

    parts: Mapping[Names, Strategy]

    def nested(self) -> Mapping[Names, Strategy]:
        """Get the parts."""
        return self.parts

    def replace_nested(self, strategies: Mapping[Names, Strategy]) -> Strategy:
        """Replace the parts."""
        return ByName(strategies)

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Give each part its own tensors of every upload, and its own memory."""
        for names, strategy in self.parts.items():
            prefixes = _prefixes(names)
            selected = [replace(update, state=select(update.state, prefixes)) for update in updates]
            server = server.scoped("+".join(prefixes), partial(strategy.aggregate, updates=selected))
        return server


def _prefixes(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def averaged_tensors(strategy: Strategy, names: Sequence[str]) -> list[str]:
    """Select the uploaded tensors that a strategy averages over the whole cohort, in the given order."""
    if isinstance(strategy, Reducer):
        return list(names) if strategy.reduces_cohort else []
    chosen: set[str] = set()
    for key, inner in strategy.nested().items():
        prefixes = _prefixes(key)
        own = [name for name in names if not prefixes or matches_prefix(prefixes, name)]
        chosen.update(averaged_tensors(inner, own))
    return [name for name in names if name in chosen]


@dataclass(frozen=True)
class MovingAverage(Wrapper):
    """Moving average over rounds of the shared tensors, which is deployed: d <- (1 - share) d + share s.

    Args:
        inner: The strategy that computes the new shared tensors.
        share: Maps the number of finished rounds to the newest tensors' share, in [0, 1].
        names: Names or prefixes of the tensors to average; all others are deployed unchanged.
        sends_average: Whether clients start from the average, as in DiPrompT, instead of the newest tensors.

    >>> server = ServerState.start({"prompt": torch.zeros(1)})
    >>> update = ClientUpdate(Client(0, 0, 1), {"prompt": torch.tensor([8.0])}, 1)
    >>> server = MovingAverage(FedAvg(), ema_share(0.75), ("prompt",)).aggregate(server, [update])
    >>> server.shared["prompt"].item(), server.deployed["prompt"].item()
    (8.0, 2.0)
    """

    share: Callable[[int], float]
    names: tuple[str, ...]
    sends_average: bool = False

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Aggregate, then move the deployed tensors towards the shared ones by the share."""
        # Saved before the aggregation, which deploys the new shared tensors.
        before = server.deployed
        server = self.inner.aggregate(server, updates)
        # In float32, because half precision would lose small shares.
        share = self.share(server.round)
        average = {
            name: torch.lerp(before[name].float(), value.float(), share).to(value.dtype)
            for name, value in select(server.shared, self.names).items()
        }
        return server.updated(average) if self.sends_average else replace(server, deployed=server.deployed | average)


@dataclass(frozen=True)
class ServerComputed(Wrapper):
    """Shared tensors that the server computes from the others after aggregating: shared <- shared | make(shared).

    Args:
        inner: The strategy that combines the uploads.
        make: Maps all shared tensors to the computed ones, without side effects and without gradients.

    >>> from fedvlp.core.slots import Slots
    >>> server = ServerState.start({"prompts": torch.zeros(2, 1), "mean": torch.zeros(1)})
    >>> mean = lambda shared: {"mean": shared["prompts"].mean(0)}
    >>> strategy = ServerComputed(Slots("client"), mean)
    >>> server = strategy.aggregate(server, [ClientUpdate(Client(1, 0, 4), {"prompts": torch.tensor([6.0])}, 4)])
    >>> server.shared["mean"].item()
    3.0
    """

    make: Callable[[State], State]

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Combine the uploads, and compute the derived tensors. Without updates the state is unchanged."""
        if not updates:
            return server
        server = self.inner.aggregate(server, updates)
        with torch.no_grad():
            return server.updated(detached(self.make(server.shared)))


def beta_share(beta: float, rounds: int, repeats_first: bool = False) -> Callable[[int], float]:
    """Make the share of round r in the Beta moving average: its weight divided by the sum of weights up to it.

    Weight a_i is the Beta(beta, beta) density at (i + 0.5) / (rounds + 1): large early and late, small between. The
    initial tensors have weight a_0, and round r, from 0, has weight a_{r+1} (DiPrompT, Eq. 5).

    Args:
        beta: Both parameters of the density, > 0.
        rounds: Number of rounds R; later rounds have no share.
        repeats_first: Whether the first round also has weight a_0, and round r weight a_r, as in TRIP's released code.
            The last round then does not get a_R, the largest weight together with a_0.

    >>> [round(beta_share(1.0, 3)(r), 3) for r in range(3)]
    [0.5, 0.333, 0.25]
    >>> [round(beta_share(0.2, 15, repeats_first=first)(14), 4) for first in (False, True)]
    [0.1791, 0.0785]
    """
    # At midpoints, because for a beta below 1 the density is infinite at both ends.
    points = [(i + 0.5) / (rounds + 1) for i in range(rounds + 1)]
    weights: list[float] = [(x * (1 - x)) ** (beta - 1) for x in points]  # the density's constant cancels
    if repeats_first:
        weights = [weights[0], *weights[:-1]]

    # Not a nested function, because methods that hold it must be picklable.
    return [weights[index] / sum(weights[: index + 1]) for index in range(1, rounds + 1)].__getitem__


def gaussian_share(mean: float, std: float) -> Callable[[int], float]:
    """Make the share of round r in a Gaussian-weighted average, g_r / sum_{i <= r} g_i (PromptSRC, but over rounds).

    The weight g_i is exp(-(i - mean)^2 / (2 std^2)) for rounds i = 1, 2, ...; the initial tensors have no share.
    ``mean`` is at least 1, ``std`` above 0.

    >>> [round(gaussian_share(2.0, 1.0)(r), 3) for r in range(3)]
    [1.0, 0.622, 0.274]
    """

    def share(finished: int) -> float:
        logs = [-((i - mean) ** 2) / (2 * std**2) for i in range(1, finished + 2)]
        # Relative to the largest, because all may underflow.
        largest = max(logs)
        weights = [math.exp(log - largest) for log in logs]
        return weights[-1] / sum(weights)

    return share


def ema_share(momentum: float) -> Callable[[int], float]:
    """Make the constant share of an exponential moving average, 1 - momentum, with the momentum in [0, 1)."""
    return lambda finished: 1 - momentum
