"""Attacks on uploads: hostile clients train like honest clients, but change their uploads."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fedvlp.core.state import Client, State
from fedvlp.training.add_ons.base import AddOn, LocalContext, LocalResult
from fedvlp.training.cohort import Attack
from fedvlp.utils.ranges import PositiveFloat
from fedvlp.utils.seeding import derive_seed

ATTACK = 0x41746B
"""Separates an attack's random numbers from others of a client's seed."""


@dataclass(frozen=True)
class ModelAttack(Attack, ABC):
    """Base of attacks that change each tensor in the uploads of hostile clients; their personal tensors are honest.

    Args:
        clients: How many clients are hostile: a number, or a share below 1, rounded down.
        seed: Seed of the choice of hostile clients.
    """

    clients: float = 0.3
    seed: int = 0

    @abstractmethod
    def change(self, value: Tensor, before: Tensor, generator: Generator) -> Tensor:
        """Compute the tensor that is sent instead of the honest ``value``.

        Args:
            value: The honest upload, in float32.
            before: The downloaded tensor, in float32; zero if no tensor of that name was downloaded.
            generator: Source of all random numbers.
        """
        ...

    def add_on(self, clients: Sequence[Client]) -> AddOn:
        """Create the add-on that changes the uploads of hostile clients."""
        return HostileUpload(self, self.hostile(clients))


@dataclass(frozen=True)
class HostileUpload(AddOn):
    """Add-on that changes the uploads of clients whose ids are in ``hostile``."""

    attack: ModelAttack
    hostile: frozenset[int]

    needs_average = False

    def finish(self, local: LocalContext, upload: State) -> LocalResult:
        """Change the upload of a hostile client."""
        if local.client.id not in self.hostile:
            return LocalResult(upload)
        generator = torch.Generator().manual_seed(derive_seed(local.seed, ATTACK))
        changed: State = {}
        for name, value in upload.items():
            # In float32, because a long update would overflow half precision.
            before = downloaded_value(local.downloaded, name, value, local.client)
            changed[name] = self.attack.change(value.float(), before.float(), generator).to(value.dtype)
        return LocalResult(changed)


def downloaded_value(downloaded: State, name: str, value: Tensor, client: Client) -> Tensor:
    """Find the downloaded tensor of an upload's name (in a stack of domains, the client's); zero if there is none."""
    before = downloaded.get(name)
    if before is not None and before.shape == value.shape:
        return before
    if before is not None and before.shape[1:] == value.shape and 0 <= client.domain < len(before):
        return before[client.domain]
    return torch.zeros_like(value)


@dataclass(frozen=True)
class SignFlip(ModelAttack):
    """Hostile clients send the negated update: x - scale (y - x) instead of the upload y, after downloading x.

    Args:
        scale: Length of the update, as a multiple of the honest update's length.
    """

    scale: PositiveFloat = 1.0

    def change(self, value: Tensor, before: Tensor, generator: Generator) -> Tensor:
        """Compute x - scale (y - x)."""
        return before - self.scale * (value - before)


@dataclass(frozen=True)
class Scaling(ModelAttack):
    """Hostile clients send a scaled update: x + factor (y - x) instead of the upload y, after downloading x.

    If the factor is the number of clients, one client determines their mean (model replacement, Bagdasaryan et al.,
    How to backdoor federated learning, AISTATS 2020).

    Args:
        factor: Length of the update, as a multiple of the honest update's length; negative values also flip its sign.
    """

    factor: float = 100.0

    def change(self, value: Tensor, before: Tensor, generator: Generator) -> Tensor:
        """Compute x + factor (y - x)."""
        return before + self.factor * (value - before)


@dataclass(frozen=True)
class GaussianNoise(ModelAttack):
    """Hostile clients add normal noise to each element of the upload.

    Args:
        std: Standard deviation of the noise.
    """

    std: PositiveFloat = 1.0

    def change(self, value: Tensor, before: Tensor, generator: Generator) -> Tensor:
        """Compute y + std N(0, 1)."""
        return value + self.std * torch.randn(value.shape, generator=generator)
