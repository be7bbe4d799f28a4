"""What a client that trusts no server does to its upload before it sends it: clipping and noise of its own."""

from __future__ import annotations

from dataclasses import dataclass

from fedvlp.core.aggregation.noise import seeded_normals, system_normals, with_noise
from fedvlp.core.aggregation.updates import shortened, update_of
from fedvlp.core.state import State
from fedvlp.utils.seeding import derive_seed


@dataclass(frozen=True)
class ClientNoise:
    """Local differential privacy of one upload by the Gaussian mechanism.

    The update d, over all tensors of the upload, is sent as d min(1, S / |d|) + N(0, z^2 S^2).

    Args:
        clip_norm: S, the longest update as Euclidean norm, above 0.
        noise_multiplier: z, the noise's standard deviation as a multiple of ``clip_norm``, at least 0.
        seed: of noise that repeats, mixed with that of the client; None takes the system's secure randomness.

    >>> import torch
    >>> ClientNoise(1.0, 0.0, seed=0).protected({"p": torch.tensor([3.0, 4.0])}, {"p": torch.zeros(2)}, 5)
    {'p': tensor([0.6000, 0.8000])}
    """

    clip_norm: float
    noise_multiplier: float
    seed: int | None

    def protected(self, upload: State, before: State, client_seed: int) -> State:
        """Returns what is sent in place of an upload.

        Args:
            upload: what the client would send.
            before: what it went on from, by the same names; there may be others.
            client_seed: of the client in this phase and round.
        """
        draw = system_normals() if self.seed is None else seeded_normals(derive_seed(self.seed, client_seed))
        update = shortened(update_of(upload, before), self.clip_norm)
        noised = with_noise(update, self.noise_multiplier * self.clip_norm, draw)
        return {name: (before[name].double() + move).to(upload[name].dtype) for name, move in noised.items()}
