"""Base classes of aggregators, which combine uploads without side effects. Configs choose them by class name."""

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
    """Differential privacy of each client by an aggregator's Gaussian noise.

    Attributes:
        noise_multiplier: Standard deviation of the noise, as a multiple of the largest update norm.
        delta: Probability with which the guarantee may fail.
        repeats: Whether the noise comes from the run's seed. Anyone who knows the seed can subtract it.
        is_local: Whether each client adds its own noise before uploading, so that it need not trust the server.
    """

    noise_multiplier: float
    delta: float
    repeats: bool
    is_local: bool = False


@dataclass(frozen=True)
class ClientNoise:
    """Noise that each client adds to its upload, by :func:`fedvlp.core.aggregation.privacy.noised_upload`.

    ``seed`` is mixed with the client's seed to make reproducible noise; None uses the system's secure randomness.
    """

    clip_norm: float
    noise_multiplier: float
    seed: int | None


class Aggregator:
    """A rule that combines several states into one. Subclasses are frozen dataclasses that override ``combine``.

    An aggregator is deterministic and has no state: the same uploads in the same order give the same result. An
    aggregator with memory between rounds overrides ``aggregate``, which takes and returns the memory.
    """

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def min_clients(self) -> int:
        """The minimum number of uploads, at least 1."""
        return 1

    @property
    def is_linear(self) -> bool:
        """Whether it needs only the weighted sum of the uploads, so that it works with a secure sum."""
        return False

    @property
    def guarantee(self) -> PrivacyGuarantee | None:
        """The differential privacy of a client's upload; None without noise."""
        return None

    @property
    def client_noise(self) -> ClientNoise | None:
        """The noise that each client adds to its upload; None for no noise."""
        return None

    def bind(self, num_clients: int, seed: int) -> Aggregator:
        """Bind the aggregator to a reduction of the round; by default it is unchanged.

        ``num_clients`` is the number of clients whose uploads are combined if none is skipped. ``seed`` is for all
        random draws of the aggregator.
        """
        return self

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Combine at least ``min_clients`` finite uploads with the same names and shapes, without memory.

        Weights are at least 0 and not all 0; some aggregators ignore them and count each client once. ``before`` has
        the tensors that the clients started from, and may have further ones.
        """
        # Subclasses override this method or, with memory, ``aggregate``.
        return self.aggregate(states, weights, before, {})[0]

    def aggregate(
        self, states: Sequence[State], weights: Sequence[float], before: State, memory: State
    ) -> tuple[State, State]:
        """Combine uploads like ``combine``, and return the memory for the next round as well.

        ``memory`` was returned in the previous round. It is empty in the first round.
        """
        return self.combine(states, weights, before), {}

    def check(self, num_clients: int, where: str) -> None:
        """Raise UserError if there are too few clients; ``where`` is a phrase like ``phase 'train'``."""
        if num_clients < self.min_clients:
            raise UserError(
                f"{to_jsonable(self)} needs uploads of at least {self.min_clients} clients, but {where} has "
                f"{num_clients} in a round. Use more clients (data.partition, trainer.clients.cohort_size) or another "
                "aggregator."
            )


@dataclass(frozen=True)
class WeightedMean(Aggregator):
    """Mean over clients, weighted by the strategy (McMahan et al. 2017, Algorithm 1).

    A single hostile client can change it arbitrarily.

    >>> WeightedMean().combine([{"p": torch.tensor([0.0])}, {"p": torch.tensor([3.0])}], [2, 1], {})
    {'p': tensor([1.])}
    """

    is_linear = True

    def combine(self, states: Sequence[State], weights: Sequence[float], before: State) -> State:
        """Compute the mean sum_k w_k s_k / sum_k w_k."""
        return weighted_mean(states, weights)


class OuterAggregator(Aggregator):
    """An aggregator that adds a step before or after an ``inner`` aggregator, and otherwise behaves like it.

    Subclasses are frozen dataclasses with the field ``inner`` that override ``aggregate``.
    """

    inner: Aggregator

    @property
    def min_clients(self) -> int:
        """The inner aggregator's minimum."""
        return self.inner.min_clients

    @property
    def guarantee(self) -> PrivacyGuarantee | None:
        """The inner aggregator's guarantee. The outer step depends on single clients or on no upload."""
        return self.inner.guarantee

    @property
    def client_noise(self) -> ClientNoise | None:
        """The inner aggregator's noise."""
        return self.inner.client_noise

    def bind(self, num_clients: int, seed: int) -> Aggregator:
        """Bind the inner aggregator."""
        this: Any = self  # every subclass is a dataclass
        return replace(this, inner=self.inner.bind(num_clients, seed))


def stack_uploads(states: Sequence[State]) -> dict[str, Tensor]:
    """Stack uploads to float32 tensors [clients, ...] by name."""
    return {name: torch.stack([state[name].float() for state in states]) for name in states[0]}


def cast_like(state: State, template: State) -> State:
    """Cast a state to the dtypes of another."""
    return {name: value.to(template[name].dtype) for name, value in state.items()}
