"""A trainer of clients of whom some send something else than what they trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from fedvlp.core.state import Client, ClientUpdate, State
from fedvlp.training.client_trainer import ClientResult, ClientTrainer, PhaseOrder
from fedvlp.utils.seeding import derive_seed

ATTACK = 0x41746B
"""Marks an attack's draws among all that depends on a client's seed."""


@dataclass(frozen=True)
class HostileTrainer:
    """Trains all clients as another trainer does, and changes what hostile ones send.

    Args:
        trainer: trains the clients.
        changed: from an uploaded tensor, what was downloaded in its place and a generator to what is sent.
        hostile: ids of the hostile clients.
    """

    trainer: ClientTrainer
    changed: Callable[[Tensor, Tensor, Generator], Tensor]
    hostile: frozenset[int]

    def train(self, order: PhaseOrder, clients: Sequence[Client]) -> list[ClientResult]:
        """Returns the results of these clients, with the changed uploads of those that are hostile."""
        # Uploads are added up, where they are, once they are as hostile clients send them.
        results = self.trainer.train(replace(order, adding=None), clients)
        return [self._attacked(order, each) if each.update.client.id in self.hostile else each for each in results]

    def _attacked(self, order: PhaseOrder, result: ClientResult) -> ClientResult:
        client = result.update.client
        downloaded = order.phase.strategy.broadcast(order.state.server, client)
        generator = torch.Generator().manual_seed(derive_seed(order.seeds[client.id], ATTACK))
        state: State = {}
        for name, value in result.update.state.items():
            before = went_on_from(downloaded, name, value, client)
            state[name] = self.changed(value.float(), before.float(), generator).to(value.dtype)
        update: ClientUpdate = replace(result.update, state=state)
        return replace(result, update=update)


def went_on_from(downloaded: State, name: str, value: Tensor, client: Client) -> Tensor:
    """Returns what a client downloaded in place of a tensor that it sends.

    Of a stack that holds a tensor for each domain it is that of the client's own. Where nothing of the name was
    downloaded, as of prompts that only the client has, it is zero.

    >>> stack = {"prompts": torch.tensor([[1.0], [2.0]])}
    >>> went_on_from(stack, "prompts", torch.tensor([9.0]), Client(0, 1, 5)).item()
    2.0
    """
    before = downloaded.get(name)
    if before is not None and before.shape == value.shape:
        return before
    if before is not None and before.shape[1:] == value.shape and 0 <= client.domain < len(before):
        return before[client.domain]
    return torch.zeros_like(value)
