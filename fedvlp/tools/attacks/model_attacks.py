"""Attacks on uploads: hostile clients train as honest ones do and send something else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fedvlp.core.state import Client, State
from fedvlp.training.add_ons.base import AddOn, Finished, LocalContext
from fedvlp.training.cohort import Attack
from fedvlp.utils.ranges import PositiveFloat
from fedvlp.utils.seeding import derive_seed

ATTACK = 0x41746B
"""Marks an attack's draws among all that depends on a client's seed."""


class ModelAttack(Attack, ABC):
    """Changes each tensor that a hostile client sends; its personal tensors are honest."""

    @abstractmethod
    def changed(self, value: Tensor, before: Tensor, generator: Generator) -> Tensor:
        """Returns what is sent in place of a tensor.

        Args:
            value: the honest upload, in float32.
            before: what the client had downloaded in its place; zero where it downloaded nothing of that name.
            generator: of all that is drawn.
        """
        ...

    def add_on(self, clients: Sequence[Client]) -> AddOn:
        """What changes the uploads of hostile clients."""
        return HostileUpload(self, self.hostile(clients))


@dataclass(frozen=True)
class HostileUpload(AddOn):
    """Changes what the clients with the ``hostile`` ids send."""

    attack: ModelAttack
    hostile: frozenset[int]

    needs_average = False

    def finish(self, local: LocalContext, upload: State) -> Finished:
        """The changed upload of a hostile client, and an honest one unchanged."""
        if local.client.id not in self.hostile:
            return Finished(upload)
        # Of the client's own seed, which differs by round and phase: a resumed run draws the same.
        generator = torch.Generator().manual_seed(derive_seed(local.seed, ATTACK))
        changed: State = {}
        for name, value in upload.items():
            # In float32: a long update would overflow half precision.
            before = downloaded_value(local.downloaded, name, value, local.client)
            changed[name] = self.attack.changed(value.float(), before.float(), generator).to(value.dtype)
        return Finished(changed)


def downloaded_value(downloaded: State, name: str, value: Tensor, client: Client) -> Tensor:
    """What a client downloaded in place of a tensor that it sends; zero where it downloaded nothing of that name.

    Of a stack that holds a tensor for each domain it is that of the client's own.
    """
    before = downloaded.get(name)
    if before is not None and before.shape == value.shape:
        return before
    if before is not None and before.shape[1:] == value.shape and 0 <= client.domain < len(before):
        return before[client.domain]
    return torch.zeros_like(value)


@dataclass(frozen=True)
class SignFlip(ModelAttack):
    """Sends the opposite of the honest update: x - scale (y - x) for an upload y of a client that downloaded x.

    Args:
        clients: How many clients are hostile: a number, or a share below 1, rounded down.
        seed: Seed of the choice of hostile clients.
        scale: How many times as long as the honest update it is.
    """

    clients: float = 0.3
    seed: int = 0
    scale: PositiveFloat = 1.0

    def changed(self, value: Tensor, before: Tensor, generator: Generator) -> Tensor:
        """Returns x - scale (y - x)."""
        return before - self.scale * (value - before)


@dataclass(frozen=True)
class Scaling(ModelAttack):
    """Sends the honest update many times as long: x + factor (y - x) for an upload y of a client that downloaded x.

    With a factor of the number of clients one client alone decides their mean (model replacement, Bagdasaryan et al.,
    How to backdoor federated learning, AISTATS 2020).

    Args:
        clients: How many clients are hostile: a number, or a share below 1, rounded down.
        seed: Seed of the choice of hostile clients.
        factor: How many times as long it is; a negative one also flips its sign.
    """

    clients: float = 0.3
    seed: int = 0
    factor: float = 100.0

    def changed(self, value: Tensor, before: Tensor, generator: Generator) -> Tensor:
        """Returns x + factor (y - x)."""
        return before + self.factor * (value - before)


@dataclass(frozen=True)
class GaussianNoise(ModelAttack):
    """Adds normal noise to each element of the upload.

    Args:
        clients: How many clients are hostile: a number, or a share below 1, rounded down.
        seed: Seed of the choice of hostile clients.
        std: Standard deviation of the noise.
    """

    clients: float = 0.3
    seed: int = 0
    std: PositiveFloat = 1.0

    def changed(self, value: Tensor, before: Tensor, generator: Generator) -> Tensor:
        """Returns y + std N(0, 1)."""
        return value + self.std * torch.randn(value.shape, generator=generator)
