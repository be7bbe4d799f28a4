"""Server-side averages over rounds: what is deployed, and perhaps what clients start from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from fedvlp.core.state import ClientUpdate, ServerState, State, detached, select
from fedvlp.core.strategies.base import Wrapper
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class MovingAverage(Wrapper):
    """Deploys a running average over rounds of the shared tensors: d <- (1 - share) d + share s.

    Args:
        inner: the strategy that makes the new shared tensors.
        share: from the number of finished rounds to the newest tensors' share, in [0, 1].
        names: the tensors (or prefixes) that are averaged; all others are deployed unchanged.
        sends_average: whether clients start from the average (DiPrompT), not from the newest tensors.

    >>> from fedvlp.core.state import Client
    >>> from fedvlp.core.strategies.averaging import FedAvg
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
        """Aggregates, then moves the deployed tensors a share of the way to the shared ones."""
        before = server.deployed
        server = self.inner.aggregate(server, updates)
        share = self.share(server.round)
        average = {
            name: torch.lerp(before[name].float(), value.float(), share).to(value.dtype)
            for name, value in select(server.shared, self.names).items()
        }
        return server.updated(average) if self.sends_average else replace(server, deployed=server.deployed | average)


@dataclass(frozen=True)
class ServerComputed(Wrapper):
    """Computes shared tensors from the other shared ones after each aggregation: shared <- shared | make(shared).

    Args:
        inner: The strategy that combines the uploads.
        make: From all shared tensors to those computed; pure, and run without gradients.

    >>> from fedvlp.core.state import Client
    >>> from fedvlp.core.strategies.slots import Slots
    >>> server = ServerState.start({"prompts": torch.zeros(2, 1), "mean": torch.zeros(1)})
    >>> mean = lambda shared: {"mean": shared["prompts"].mean(0)}
    >>> strategy = ServerComputed(Slots("client"), mean)
    >>> server = strategy.aggregate(server, [ClientUpdate(Client(1, 0, 4), {"prompts": torch.tensor([6.0])}, 4)])
    >>> server.shared["mean"].item()
    3.0
    """

    make: Callable[[State], State]

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Combines the uploads and computes what follows from them; an empty cohort changes nothing."""
        if not updates:
            return server
        server = self.inner.aggregate(server, updates)
        with torch.no_grad():
            return server.updated(detached(self.make(server.shared)))


def beta_share(beta: float, rounds: int, repeats_first: bool = False) -> Callable[[int], float]:
    """Share of round r in the Beta moving average: its weight over those of the start and of all rounds up to it.

    a_i is the Beta(beta, beta) density at (i + 0.5) / (rounds + 1): large early and late, small between. The tensors
    before the first round weigh a_0 and round r, from 0, a_{r+1} (DiPrompT, Eq. 5).

    Args:
        beta: both parameters of the density, > 0.
        rounds: the number of rounds R; asking for the share of a later one raises UserError.
        repeats_first: whether the first round weighs a_0 too, and so round r a_r, as in the released code of TRIP. The
            last round, which a_R makes the heaviest of all but the start, then weighs less.

    >>> [round(beta_share(1.0, 3)(r), 3) for r in range(3)]
    [0.5, 0.333, 0.25]
    >>> [round(beta_share(0.2, 15, repeats_first=first)(14), 4) for first in (False, True)]
    [0.1791, 0.0785]
    """
    if beta <= 0:
        raise UserError(f"The Beta average needs a beta > 0; got {beta}. DiPrompT's is 0.2.")
    points = [(i + 0.5) / (rounds + 1) for i in range(rounds + 1)]
    weights: list[float] = [(x * (1 - x)) ** (beta - 1) for x in points]  # the density's constant cancels
    if repeats_first:
        weights = [weights[0], *weights[:-1]]

    return partial(_share_of_weights, weights)  # a function of the module's, which pickles with a method that keeps it


def _share_of_weights(weights: Sequence[float], finished: int) -> float:
    """Returns the newest round's weight over those of the start and of all rounds; weights are of these, in order."""
    rounds = len(weights) - 1
    if finished >= rounds:
        raise UserError(
            f"The Beta average was made for {rounds} rounds, but round {finished + 1} was run. "
            "Give the method as many rounds as the federation."
        )
    return weights[finished + 1] / sum(weights[: finished + 2])


def gaussian_share(mean: float, std: float) -> Callable[[int], float]:
    """Share of round r in a Gaussian-weighted average: g_r / sum_{i <= r} g_i (PromptSRC's, over rounds).

    g_i is exp(-(i - mean)^2 / (2 std^2)) for rounds i = 1, 2, ...; the tensors before the first round have no share.

    Args:
        mean: the round that weighs most, from 1.
        std: standard deviation in rounds, > 0.

    >>> [round(gaussian_share(2.0, 1.0)(r), 3) for r in range(3)]
    [1.0, 0.622, 0.274]
    """

    def share(finished: int) -> float:
        logs = [-((i - mean) ** 2) / (2 * std**2) for i in range(1, finished + 2)]
        most = max(logs)
        weights = [math.exp(log - most) for log in logs]
        return weights[-1] / sum(weights)

    return share


def ema_share(momentum: float) -> Callable[[int], float]:
    """Share of every round in an exponential moving average: 1 - momentum.

    Args:
        momentum: how much of the old average stays, in [0, 1).

    >>> ema_share(0.75)(12)
    0.25
    """
    return lambda finished: 1 - momentum
