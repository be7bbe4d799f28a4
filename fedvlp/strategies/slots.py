"""A server that keeps one entry a client or a domain, instead of one average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedvlp.state import Client, ClientUpdate, ServerState, weighted_mean
from fedvlp.strategies.base import BroadcastShared


@dataclass(frozen=True)
class Slots(BroadcastShared):
    """Server keeps a stack with one slot a client or a domain; absent slots keep their value.

    Uploads have shape [...]; the shared tensor of the same name has shape [slots, ...]. Clients of one domain are
    averaged, weighted by their training images.

    Args:
        by: whose slot an upload fills: the ``client``'s own or its ``domain``'s.

    >>> from fedvlp.state import Client
    >>> server = ServerState.start({"prompts": torch.zeros(3, 1)})
    >>> update = ClientUpdate(Client(id=7, domain=1, num_examples=4), {"prompts": torch.tensor([2.0])}, 4)
    >>> Slots(by="domain").aggregate(server, [update]).shared["prompts"].flatten().tolist()
    [0.0, 2.0, 0.0]
    """

    by: Literal["client", "domain"]

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Fills the slots of those who took part."""
        if not updates:
            return server
        stacks = {name: server.shared[name].clone() for name in updates[0].state}
        for slot in sorted({self.slot(update.client) for update in updates}):
            members = [update for update in updates if self.slot(update.client) == slot]
            mean = weighted_mean([member.state for member in members], [member.num_examples for member in members])
            for name, value in mean.items():
                stacks[name][slot] = value
        return server.updated(stacks)

    def slot(self, client: Client) -> int:
        """Returns the slot that this client's upload fills."""
        return client.id if self.by == "client" else client.domain


@dataclass(frozen=True)
class IndicatorMean(BroadcastShared):
    """Mean of each domain's tensor over the clients that trained it (DiPrompT, Eq. 4).

    Args:
        indicator: name of the uploaded tensor [domains] that counts the images on which each domain's tensor was
            trained. A domain that nobody trained keeps its value.

    >>> from fedvlp.state import Client
    >>> server = ServerState.start({"prompts": torch.tensor([[1.0], [1.0]])})
    >>> upload = {"prompts": torch.tensor([[5.0], [9.0]]), "counts": torch.tensor([4.0, 0.0])}
    >>> strategy = IndicatorMean("counts")
    >>> strategy.aggregate(server, [ClientUpdate(Client(0, 0, 4), upload, 4)]).shared["prompts"].flatten().tolist()
    [5.0, 1.0]
    """

    indicator: str

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Averages each domain over the clients whose indicator for it is positive."""
        if not updates:
            return server
        counts = torch.stack([update.state[self.indicator] for update in updates]).float()  # [clients, domains]
        names = [name for name in updates[0].state if name != self.indicator]
        return server.updated(
            {
                name: self._mean(server.shared[name], torch.stack([u.state[name] for u in updates]), counts)
                for name in names
            }
        )

    @staticmethod
    def _mean(old: Tensor, uploads: Tensor, counts: Tensor) -> Tensor:
        """Returns [domains, ...]: the weighted mean of ``uploads`` [clients, domains, ...], or ``old``."""
        total = counts.sum(0)  # [domains]
        weights = counts / total.clamp_min(torch.finfo(torch.float32).tiny)  # [clients, domains]
        mean = torch.einsum("kd,kd...->d...", weights, uploads.float())
        trained = (total > 0).view(-1, *[1] * (mean.ndim - 1))
        return torch.where(trained, mean, old.float()).to(old.dtype)
