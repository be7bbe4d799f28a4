"""Local differential privacy: each client clips its update and adds noise to it before anything leaves it."""

from __future__ import annotations

from dataclasses import dataclass

from fedvlp.core.aggregation.noise import ClientNoise
from fedvlp.core.state import State
from fedvlp.training.add_ons.base import AddOn, Finished, LocalContext
from fedvlp.utils.seeding import derive_seed

NOISE = 1
"""Sets a client's noise apart from the other draws of its seed."""


@dataclass(frozen=True)
class NoisyUpload(AddOn):
    """Protects each upload from the server, as ``DPFedAvg`` with noise at the clients asks.

    Args:
        noise: clipping norm and noise.
    """

    noise: ClientNoise

    needs_average = False

    def finish(self, local: LocalContext, upload: State) -> Finished:
        """The clipped and noised upload."""
        return Finished(self.noise.protected(upload, local.downloaded, derive_seed(local.seed, NOISE)))
