"""Mean of clipped updates with Gaussian noise, for differential privacy of each client.

Papers: McMahan et al., Learning differentially private recurrent language models, ICLR 2018 (DP-FedAvg, Algorithm 1
with flat clipping, equal weights and the estimator of fixed denominator). Andrew et al., Differentially private
learning with adaptive clipping, NeurIPS 2021 (Algorithm 1, Theorem 1).

Symbols: S, C -> ``clip_norm``; z -> ``noise_multiplier``; gamma -> ``quantile``; eta_C -> ``clip_learning_rate``;
sigma_b -> ``count_noise``; qW, m -> ``expected_clients``; z_Delta -> ``update_noise_multiplier``.

Deviations:
    * Cohorts: Andrew et al. sample each client independently; fedvlp samples cohorts of a fixed size, so their size is
      public, and a client that sends nothing counts as one half.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedvlp.core.aggregation.base import Aggregator, ClientNoise, PrivacyGuarantee
from fedvlp.core.state import State
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import NonNegativeFloat, NonNegativeInt, OpenFraction, PositiveFloat, PositiveInt
from fedvlp.utils.seeding import derive_seed

# Draws a number of independent standard normal values in float64.
Draw = Callable[[int], Tensor]


def normal_draws(seed: int | None) -> Draw:
    """Make a function that draws normal values, reproducibly from a seed or, with None, from secure randomness.

    >>> torch.equal(normal_draws(3)(4), normal_draws(3)(4)), torch.equal(normal_draws(3)(4), normal_draws(4)(4))
    (True, False)
    """
    # Raw words are the same in every version of NumPy, unlike its normal values.
    generator = None if seed is None else np.random.PCG64(seed)

    def draw(count: int) -> Tensor:
        words = os.urandom(8 * count) if generator is None else generator.random_raw(count).tobytes()
        # 52 bits plus half a step are exact in float64 and never reach 0 or 1, where the inverse is infinite.
        shares = ((np.frombuffer(words, np.uint64) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return torch.special.ndtri(torch.from_numpy(shares))

    return draw


def add_noise(state: State, std: float, draw: Draw) -> State:
    """Add independent Gaussian noise of standard deviation ``std`` to each value, in float64; 0 draws nothing."""
    if std == 0:
        return {name: value.double() for name, value in state.items()}
    return {name: value.double() + std * draw(value.numel()).reshape(value.shape) for name, value in state.items()}


def clip_to_norm(update: State, max_norm: float) -> State:
    """Scale an update down to a maximum norm, in float64."""
    # Over all tensors together, because a limit for each tensor would allow longer updates.
    norm = joint_norm(update)
    # With NaN in an update the comparison is false, and all of it becomes NaN, so that no part leaves unclipped.
    return update if norm <= max_norm else {name: move * (max_norm / norm) for name, move in update.items()}


def subtract(state: State, before: State) -> State:
    """Compute the update of an upload from ``before``, in float64."""
    return {name: value.double() - before[name].double() for name, value in state.items()}


def joint_norm(update: State) -> float:
    """Compute the Euclidean norm over all tensors of an update."""
    return math.sqrt(sum(move.square().sum().item() for move in update.values()))


def noised_upload(noise: ClientNoise, upload: State, before: State, client_seed: int) -> State:
    """Clip a client's update d and add noise before it is sent: d min(1, S / |d|) + N(0, z^2 S^2).

    The Gaussian mechanism over all tensors of one upload gives local differential privacy. ``before`` has the tensors
    that the client started from; ``client_seed`` is the client's seed in this phase and round.

    >>> noised_upload(ClientNoise(1.0, 0.0, seed=0), {"p": torch.tensor([3.0, 4.0])}, {"p": torch.zeros(2)}, 5)
    {'p': tensor([0.6000, 0.8000])}
    """
    draw = normal_draws(None if noise.seed is None else derive_seed(noise.seed, client_seed))
    update = clip_to_norm(subtract(upload, before), noise.clip_norm)
    noised = add_noise(update, noise.noise_multiplier * noise.clip_norm, draw)
    return {name: (before[name].double() + move).to(upload[name].dtype) for name, move in noised.items()}


@dataclass(frozen=True)
class DPFedAvg(Aggregator):
    """Differentially private mean: clipped updates plus Gaussian noise, divided by a fixed number of clients.

    The result is before + (sum_k d_k min(1, S / |d_k|) + N(0, z^2 S^2)) / m, where d_k is a client's update over all
    tensors that are combined together. Each client counts once, regardless of its number of images. A skipped client
    adds zero and m does not change, which hides whether the client took part.

    With a quantile the limit S follows the quantile of the updates' norms: S <- S exp(-eta_C (b - gamma)), where b is
    the noised share of updates within S. The noise on the updates increases such that both releases together are as
    private as z without a quantile (Andrew et al. 2021, Theorem 1).

    With noise at the clients, each client clips its own update and adds N(0, z^2 S^2) before uploading it. The server
    averages the uploads: before + sum_k (d_k min(1, S / |d_k|) + N(0, z^2 S^2)) / m. This also hides a client's update
    from the server (local differential privacy), but the noise of the mean has m times the variance.

    Args:
        clip_norm: Largest Euclidean norm of an update, > 0; with a quantile its value in the first round.
        noise_multiplier: Standard deviation of the noise as a multiple of clip_norm, >= 0. With 0 there is no privacy.
        quantile: Share of the updates to leave unclipped, in (0, 1); clip_norm is fixed if not given.
        clip_learning_rate: Learning rate with which clip_norm follows the quantile, > 0.
        count_noise: Standard deviation of the noise on the count of updates within clip_norm, above half the
            noise_multiplier; a twentieth of a round's clients if not given.
        delta: Probability with which the guarantee may fail, in (0, 1). It must be far below 1 / clients.
        noise_from: ``seed`` derives reproducible noise from the run's seed, for studies: anyone who knows the seed can
            subtract the noise. ``system`` uses the operating system's secure randomness.
        noise_at: ``server`` adds noise to the sum, so clients must trust the server with their updates; ``client`` lets
            each client add noise before uploading.
        expected_clients: Number of clients by which the sum is divided, >= 1; a round's clients if not given.
        seed: Seed of the noise; derived from the run's seed if not given.

    >>> sent = [{"p": torch.tensor([3.0, 4.0])}, {"p": torch.tensor([0.0, 1.0])}]
    >>> server = DPFedAvg(clip_norm=1.0, noise_multiplier=0.0, expected_clients=4, seed=0)
    >>> server.combine(sent, [9, 1], {"p": torch.zeros(2)})
    {'p': tensor([0.1500, 0.4500])}
    """

    clip_norm: PositiveFloat
    noise_multiplier: NonNegativeFloat
    quantile: OpenFraction | None = None
    clip_learning_rate: PositiveFloat = 0.2
    count_noise: PositiveFloat | None = None
    delta: OpenFraction = 1e-5
    noise_from: Literal["seed", "system"] = "seed"
    noise_at: Literal["server", "client"] = "server"
    expected_clients: PositiveInt | None = None
    seed: NonNegativeInt | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_at == "client" and self.quantile is not None:
            raise UserError(
                "DPFedAvg with noise_at client can't follow a quantile, because the server does not know the norms of "
                "updates. Remove quantile, or set noise_at to server."
            )
        # Without expected_clients this is checked once the aggregator is bound to a round.
        if self.quantile is None or self.expected_clients is None:
            return
        noise = self.noise_multiplier
        if noise >= 2 * self._count_std():
            raise UserError(
                f"DPFedAvg with a quantile needs count_noise above half the noise_multiplier of {noise:g}; got "
                f"{self._count_std():g}. Set count_noise to {noise:g} or more."
            )

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """The guarantee of the noise multiplier, with or without a quantile."""
        is_local = self.noise_at == "client"
        return PrivacyGuarantee(self.noise_multiplier, self.delta, self.noise_from == "seed", is_local)

    @property
    def client_noise(self) -> ClientNoise | None:
        """The noise of each client, if ``noise_at`` is ``client``."""
        if self.noise_at == "server":
            return None
        return ClientNoise(self.clip_norm, self.noise_multiplier, self._noise_seed())

    @property
    def update_noise_multiplier(self) -> float:
        """Noise on the sum of updates as a multiple of clip_norm: z, or z_Delta = (z^-2 - (2 sigma_b)^-2)^(-1/2)."""
        if self.quantile is None or self.noise_multiplier == 0:
            return self.noise_multiplier
        return 1 / math.sqrt(self.noise_multiplier**-2 - (2 * self._count_std()) ** -2)

    def bind(self, num_clients: int, seed: int) -> DPFedAvg:
        """Fill in the number of clients and the noise seed, if they are not given."""
        own_seed = seed if self.seed is None and self.noise_from == "seed" else self.seed
        return replace(self, expected_clients=self.expected_clients or num_clients, seed=own_seed)

    def aggregate(
        self, states: Sequence[State], weights: Sequence[float], before: State, memory: State
    ) -> tuple[State, State]:
        """Apply the noised mean update. The memory holds the number of draws, and clip_norm if it adapts."""
        draws = int(memory["draws"].item()) if memory else 0
        clip_norm = memory["clip_norm"].item() if "clip_norm" in memory else self.clip_norm
        # These uploads are already clipped and noised, and clipping them again would remove some of the noise.
        if self.noise_at == "client":
            noised, _ = _sum_clipped(states, before, math.inf)
            return self._apply(states, before, noised), {}
        seed = self._noise_seed()
        draw = normal_draws(None if seed is None else derive_seed(seed, draws))
        total, norms = _sum_clipped(states, before, clip_norm)
        noised = add_noise(total, self.update_noise_multiplier * clip_norm, draw)
        after = self._apply(states, before, noised)
        # The number of draws is part of the seed, so that the noise differs between rounds.
        new_memory = {"draws": torch.tensor(draws + 1)}
        if self.quantile is not None:
            adapted = self._adapt_clip_norm(clip_norm, norms, self.quantile, draw)
            new_memory["clip_norm"] = torch.tensor(adapted, dtype=torch.float64)
        return after, new_memory

    def _apply(self, states: Sequence[State], before: State, total: State) -> State:
        after: State = {}
        for name, value in total.items():
            after[name] = (before[name].double() + value / self._clients()).to(states[0][name].dtype)
        return after

    def _adapt_clip_norm(self, clip_norm: float, norms: Sequence[float], quantile: float, draw: Draw) -> float:
        # Subtracting one half per client halves the effect of a single client on the sum.
        within = sum(0.5 if norm <= clip_norm else -0.5 for norm in norms)
        noise = self._count_std() * draw(1).item() if self.noise_multiplier > 0 else 0.0
        share = (within + noise) / self._clients() + 0.5
        return clip_norm * math.exp(-self.clip_learning_rate * (share - quantile))

    def _noise_seed(self) -> int | None:
        if self.noise_from == "system":
            return None
        if self.seed is None:
            raise UserError("DPFedAvg outside a federation has no seed. Set seed, or noise_from to system.")
        return self.seed

    def _clients(self) -> int:
        if self.expected_clients is None:
            # Dividing by the number of uploads would reveal how many clients took part.
            raise UserError("DPFedAvg outside a federation does not know the number of clients. Set expected_clients.")
        return self.expected_clients

    def _count_std(self) -> float:
        """Get sigma_b; the default is the recommendation of Andrew et al."""
        return self._clients() / 20 if self.count_noise is None else self.count_noise


def _sum_clipped(states: Sequence[State], before: State, clip_norm: float) -> tuple[State, list[float]]:
    # In float64, because rounding in float32 could exceed the limit.
    total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in states[0].items()}
    norms: list[float] = []
    for state in states:
        # One at a time, because all updates in float64 would take twice the memory of the uploads.
        update = subtract(state, before)
        norms.append(joint_norm(update))
        for name, value in clip_to_norm(update, clip_norm).items():
            total[name].add_(value)
    return total, norms
