"""Mean update of clipped clients with Gaussian noise: differential privacy of each client.

Papers: McMahan et al., Learning differentially private recurrent language models, ICLR 2018 (DP-FedAvg, Algorithm 1
with flat clipping, equal weights and the estimator of fixed denominator); Andrew et al., Differentially private
learning with adaptive clipping, NeurIPS 2021 (Algorithm 1, Theorem 1).

Symbols: S, C -> ``clip_norm``; z -> ``noise_multiplier``; gamma -> ``quantile``; eta_C -> ``clip_learning_rate``;
sigma_b -> ``count_noise``; qW, m -> ``expected_clients``; z_Delta -> ``update_noise_multiplier``.

Departure from Andrew et al.: cohorts have a fixed size and are not drawn client by client, so how many there are is no
secret, and a client that sends nothing counts as one half.
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

# Draws so many independent standard normal numbers in float64, others at each call.
Draw = Callable[[int], Tensor]


def normals(seed: int | None) -> Draw:
    """A draw that repeats with its seed, for studies; with None one of the system's secure randomness.

    >>> torch.equal(normals(3)(4), normals(3)(4)), torch.equal(normals(3)(4), normals(4)(4))
    (True, False)
    """
    # Raw words are the same in every version of NumPy; its own normal numbers need not be.
    generator = None if seed is None else np.random.PCG64(seed)

    def draw(count: int) -> Tensor:
        words = os.urandom(8 * count) if generator is None else generator.random_raw(count).tobytes()
        # 52 bits and a half step are exact in float64 and never reach 0 or 1, where the inverse is infinite.
        shares = ((np.frombuffer(words, np.uint64) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        drawn: Tensor = torch.special.ndtri(torch.from_numpy(shares))
        return drawn

    return draw


def with_noise(state: State, std: float, draw: Draw) -> State:
    """A state with independent Gaussian noise on each number, in float64.

    The server adds it to a sum of clipped updates; a client that trusts no server can add its share to its own. The
    standard deviation ``std`` is at least 0; with 0 nothing is drawn.
    """
    if std == 0:
        return {name: value.double() for name, value in state.items()}
    return {name: value.double() + std * draw(value.numel()).reshape(value.shape) for name, value in state.items()}


def clip_to_norm(update: State, max_norm: float) -> State:
    """An update in float64 that is no longer than the norm, in its own direction."""
    # Over all tensors together: a limit for each would let longer updates through.
    norm = norm_of(update)
    # An update with NaN has no norm. All of it becomes NaN, so that no part leaves unclipped.
    return update if norm <= max_norm else {name: move * (max_norm / norm) for name, move in update.items()}


def update_of(state: State, before: State) -> State:
    """The difference of an upload from ``before``, in float64."""
    return {name: value.double() - before[name].double() for name, value in state.items()}


def norm_of(update: State) -> float:
    """The Euclidean norm over all tensors of an update in float64."""
    return math.sqrt(sum(move.square().sum().item() for move in update.values()))


def noised_upload(noise: ClientNoise, upload: State, before: State, client_seed: int) -> State:
    """Clip a client's update d and add noise before it is sent: d min(1, S / |d|) + N(0, z^2 S^2).

    Local differential privacy of one upload by the Gaussian mechanism, over all its tensors together. ``before`` has
    the tensors that the client started from; ``client_seed`` is of the client in this phase and round.

    >>> noised_upload(ClientNoise(1.0, 0.0, seed=0), {"p": torch.tensor([3.0, 4.0])}, {"p": torch.zeros(2)}, 5)
    {'p': tensor([0.6000, 0.8000])}
    """
    draw = normals(None if noise.seed is None else derive_seed(noise.seed, client_seed))
    update = clip_to_norm(update_of(upload, before), noise.clip_norm)
    noised = with_noise(update, noise.noise_multiplier * noise.clip_norm, draw)
    return {name: (before[name].double() + move).to(upload[name].dtype) for name, move in noised.items()}


@dataclass(frozen=True)
class DPFedAvg(Aggregator):
    """Clips each client's update, sums them, adds Gaussian noise, and divides by a fixed number of clients.

    before + (sum_k d_k min(1, S / |d_k|) + N(0, z^2 S^2)) / m, where d_k is a client's update over all tensors that are
    combined together. Each client counts once, whatever its number of images. A client that is left out adds zero, and
    m does not change, so that whether it took part is hidden as well.

    With a quantile the limit S follows that of the updates' norms: S <- S exp(-eta_C (b - gamma)), where b is the share
    of updates that were within S, with noise. The noise on the updates grows such that both together are as private as
    z alone (Andrew et al. 2021, Theorem 1).

    With noise at the clients each of them shortens its own update and adds N(0, z^2 S^2) to it before it sends it, and
    the server takes the mean of what arrives: before + sum_k (d_k min(1, S / |d_k|) + N(0, z^2 S^2)) / m. That hides a
    client from the server too (local differential privacy); the mean has m times the variance of the noise.

    Args:
        clip_norm: The longest update, as Euclidean norm, above 0; with a quantile that of the first round.
        noise_multiplier: Standard deviation of the noise as a multiple of clip_norm, at least 0. With 0 nothing is
            hidden.
        quantile: Share of the updates that the clipping shall leave whole, in (0, 1); clip_norm is fixed if not given.
        clip_learning_rate: How fast clip_norm follows the quantile, above 0.
        count_noise: Standard deviation of the noise on the count of updates within clip_norm, above half the
            noise_multiplier; a twentieth of the clients of a round if not given.
        delta: Probability with which the guarantee may fail, in (0, 1). It must be far below 1 / clients.
        noise_from: ``seed`` repeats the noise with the run's seed, for studies: who knows the seed can subtract it.
            ``system`` takes the operating system's secure randomness.
        noise_at: ``server`` adds the noise to the sum, and is trusted with each update; ``client`` lets each client add
            its own before anything leaves it.
        expected_clients: The number of clients by which the sum is divided, at least 1; those of a round if not given.
        seed: Of the noise; made of the run's seed if not given.

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
            raise UserError("DPFedAvg with noise_at client can't follow a quantile: that needs the norms of updates.")
        # Else it is known only in a round, and checked when the aggregator is bound to one.
        if self.quantile is None or self.expected_clients is None:
            return
        noise = self.noise_multiplier
        if noise >= 2 * self._count_std():
            raise UserError(
                f"DPFedAvg with a quantile needs count_noise above half the noise_multiplier of {noise:g}, but it is "
                f"{self._count_std():g}. Give count_noise={noise:g}, or more."
            )

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """As private as the noise multiplier says, with or without a quantile."""
        is_local = self.noise_at == "client"
        return PrivacyGuarantee(self.noise_multiplier, self.delta, self.noise_from == "seed", is_local)

    @property
    def client_noise(self) -> ClientNoise | None:
        """What each client does, with noise_at client."""
        if self.noise_at == "server":
            return None
        return ClientNoise(self.clip_norm, self.noise_multiplier, self._noise_seed())

    @property
    def update_noise_multiplier(self) -> float:
        """Noise on the sum of updates as a multiple of clip_norm: z, or z_Delta = (z^-2 - (2 sigma_b)^-2)^(-1/2)."""
        if self.quantile is None or self.noise_multiplier == 0:
            return self.noise_multiplier
        return 1 / math.sqrt(self.noise_multiplier**-2 - (2 * self._count_std()) ** -2)

    def bound(self, num_clients: int, seed: int) -> DPFedAvg:
        """The aggregator with what was not given: the number of clients, and the seed where noise comes from one."""
        chosen = seed if self.seed is None and self.noise_from == "seed" else self.seed
        return replace(self, expected_clients=self.expected_clients or num_clients, seed=chosen)

    def aggregate(
        self, states: Sequence[State], weights: Sequence[float], before: State, memory: State
    ) -> tuple[State, State]:
        """The state after the noised mean update; remembers the number of draws, and clip_norm if it adapts."""
        draws = int(memory["draws"].item()) if memory else 0
        clip_norm = memory["clip_norm"].item() if "clip_norm" in memory else self.clip_norm
        # What arrives is clipped and noised already; to clip it again would take some of the noise away.
        if self.noise_at == "client":
            noised, _ = _clipped_sum(states, before, math.inf)
            return self._moved(states, before, noised), {}
        seed = self._noise_seed()
        draw = normals(None if seed is None else derive_seed(seed, draws))
        total, norms = _clipped_sum(states, before, clip_norm)
        noised = with_noise(total, self.update_noise_multiplier * clip_norm, draw)
        after = self._moved(states, before, noised)
        # Counted, since the seed alone would give each round the same noise.
        remembered = {"draws": torch.tensor(draws + 1)}
        if self.quantile is not None:
            followed = self._followed(clip_norm, norms, self.quantile, draw)
            remembered["clip_norm"] = torch.tensor(followed, dtype=torch.float64)
        return after, remembered

    def _moved(self, states: Sequence[State], before: State, total: State) -> State:
        """The tensors moved by a sum over the fixed number of clients."""
        after: State = {}
        for name, value in total.items():
            after[name] = (before[name].double() + value / self._clients()).to(states[0][name].dtype)
        return after

    def _followed(self, clip_norm: float, norms: Sequence[float], quantile: float, draw: Draw) -> float:
        # Of each client one half is taken off, so that one more or less changes the sum by half as much.
        within = sum(0.5 if norm <= clip_norm else -0.5 for norm in norms)
        noise = self._count_std() * draw(1).item() if self.noise_multiplier > 0 else 0.0
        share = (within + noise) / self._clients() + 0.5
        return clip_norm * math.exp(-self.clip_learning_rate * (share - quantile))

    def _noise_seed(self) -> int | None:
        """The seed of noise that repeats; None for the system's."""
        if self.noise_from == "system":
            return None
        if self.seed is None:
            raise UserError("DPFedAvg outside of a federation needs a seed, or noise_from system.")
        return self.seed

    def _clients(self) -> int:
        if self.expected_clients is None:
            # The number of arrivals would tell who took part.
            raise UserError("DPFedAvg outside of a federation needs expected_clients.")
        return self.expected_clients

    def _count_std(self) -> float:
        """The value of sigma_b; by default what Andrew et al. recommend."""
        return self._clients() / 20 if self.count_noise is None else self.count_noise


def _clipped_sum(states: Sequence[State], before: State, clip_norm: float) -> tuple[State, list[float]]:
    """The sum of the updates, each shortened to the norm, in float64, and their norms before that."""
    # In float64, since a limit that float32 rounds up would be no limit.
    total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in states[0].items()}
    norms: list[float] = []
    for state in states:
        # One at a time: all updates in float64 would take twice the memory of the uploads.
        update = update_of(state, before)
        norms.append(norm_of(update))
        for name, value in clip_to_norm(update, clip_norm).items():
            total[name].add_(value)
    return total, norms
