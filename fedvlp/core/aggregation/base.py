"""What every aggregator is: a pure function from uploads to one state, chosen by its short name in a config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedvlp.core.state import State, weighted_mean
from fedvlp.utils.digests import to_jsonable
from fedvlp.utils.errors import UserError, check_ranges


class PrivacyGuarantee(NamedTuple):
    """What the Gaussian noise of an aggregator hides of any one client.

    Attributes:
        noise_multiplier: standard deviation of the noise, as a multiple of the longest update that a client may send.
        delta: the probability with which the guarantee may fail.
        repeats: whether the noise comes from the run's seed, so that anyone who knows it can subtract the noise.
        is_local: whether each client adds its own noise before it sends, so that it need not trust the server.
    """

    noise_multiplier: float
    delta: float
    repeats: bool
    is_local: bool = False


@dataclass(frozen=True)
class ClientNoise:
    """What each client does to its upload before it sends it: :func:`fedvlp.core.aggregation.privacy.noised_upload`.

    ``seed`` is of noise that repeats, mixed with the client's seed; None takes the system's secure randomness.
    """

    clip_norm: float
    noise_multiplier: float
    seed: int | None


class Aggregator:
    """Makes one state of several; a subclass is a frozen dataclass and overrides ``combine``.

    It is pure and deterministic: the same states in the same order give the same result. What it has to remember from
    round to round goes through the memory of ``aggregate``, never into the aggregator.
    """

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def min_clients(self) -> int:
        """The fewest uploads that it can combine, at least 1."""
        return 1

    @property
    def is_linear(self) -> bool:
        """Whether all that it needs of the uploads is their weighted sum, which a secure sum would give."""
        return False

    @property
    def guarantee(self) -> PrivacyGuarantee | None:
        """How well it hides what any one client sent; None if it does not."""
        return None

    @property
    def client_noise(self) -> ClientNoise | None:
        """What each client does to its upload before it sends it; None for nothing."""
        return None

    def bound(self, num_clients: int, seed: int) -> Aggregator:
        """Bind the aggregator to one place in a round; most need to know nothing of it and are unchanged.

        ``num_clients`` are those whose uploads are combined there, if none is left out; ``seed`` is of all draws there.
        """
        return self

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Combine at least ``min_clients`` finite uploads of the same names and shapes, as in a first round.

        Weights are at least 0 and not all 0; some aggregators count each client once instead. ``before`` has the
        tensors that the clients started from, by the same names, and maybe others.
        """
        # One of the two methods is overridden: this one, or ``aggregate`` where there is a memory.
        return self.aggregate(states, weights, before, {})[0]

    def aggregate(
        self, states: Sequence[State], weights: Sequence[float], before: State, memory: State
    ) -> tuple[State, State]:
        """One state of what ``combine`` takes, and the memory for the next round; empty where nothing is remembered.

        ``memory`` is what was returned in the last round; empty in the first.
        """
        return self.combine(states, weights, before), {}

    def check(self, num_clients: int, where: str) -> None:
        """Raise UserError if so many clients are too few; ``where`` they are is such as ``phase 'train'``."""
        if num_clients < self.min_clients:
            raise UserError(
                f"{to_jsonable(self)} needs uploads of at least {self.min_clients} clients, but {where} has "
                f"{num_clients} in a round. Take more clients (data.partition, trainer.clients.cohort_size) or another "
                "aggregator."
            )


@dataclass(frozen=True)
class WeightedMean(Aggregator):
    """Mean over clients, weighted as the strategy says (McMahan et al. 2017, Algorithm 1).

    One client can move it anywhere.

    >>> WeightedMean().combine([{"p": torch.tensor([0.0])}, {"p": torch.tensor([3.0])}], [2, 1], {})
    {'p': tensor([1.])}
    """

    is_linear = True

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """The mean sum_k w_k s_k / sum_k w_k."""
        return weighted_mean(states, weights)


class OuterAggregator(Aggregator):
    """Does something before or after an inner aggregator, whose other properties it has; overrides ``aggregate``.

    A subclass is a frozen dataclass with the field ``inner``.
    """

    inner: Aggregator

    @property
    def min_clients(self) -> int:
        """As many as the inner aggregator needs."""
        return self.inner.min_clients

    @property
    def guarantee(self) -> PrivacyGuarantee | None:
        """The inner aggregator's: what is done around it depends on each client alone, or on no upload."""
        return self.inner.guarantee

    @property
    def client_noise(self) -> ClientNoise | None:
        """The inner aggregator's."""
        return self.inner.client_noise

    def bound(self, num_clients: int, seed: int) -> Aggregator:
        """Bind the inner aggregator."""
        # The base class is no dataclass, so type checkers must be told.
        this: Any = self
        outer: Aggregator = replace(this, inner=self.inner.bound(num_clients, seed))
        return outer


def stacked(states: Sequence[State]) -> dict[str, Tensor]:
    """The uploads in float32, [clients, ...] by name."""
    stacks: dict[str, Tensor] = {}
    for name in states[0]:
        stacks[name] = torch.stack([state[name].float() for state in states])
    return stacks


def cast_like(state: State, model: State) -> State:
    """A state in the number formats of another."""
    return {name: value.to(model[name].dtype) for name, value in state.items()}
