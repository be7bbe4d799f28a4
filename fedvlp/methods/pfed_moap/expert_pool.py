"""The server of pFedMoAP: it keeps every client's prompt, and lends each client those of some others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fedvlp.core.state import Client, ClientUpdate, ServerState, State, select
from fedvlp.core.strategies import FedAvg, Slots, Strategy
from fedvlp.utils.seeding import derive_seed

Selection = Literal["nearest", "random"]
EXPERTS = 0x45787074
"""Marks the draws of experts among all that depend on a seed."""


@dataclass(frozen=True)
class ExpertPool(Strategy):
    """Keeps ``prompts`` [K, L, D], a slot a client, and ``prompt`` [L, D], the mean over the last cohort.

    A client downloads the mean and, once it has a prompt of its own here, those of some others. Who has none yet gets
    zeros, and so does the place of an expert that is not there.

    Args:
        count: How many others' prompts a client gets.
        selection: Whose: the ``nearest`` by the distance of their prompts to its own, or ``random`` ones.
        slots: Keeps the prompts.
        mean: Makes the mean of a cohort's.
        deploys: All that evaluation needs of what is shared.

    >>> server = ServerState.start({"prompts": torch.zeros(3, 1, 1), "prompt": torch.zeros(1, 1)})
    >>> pool = ExpertPool(1, "nearest", Slots("client", 3))
    >>> sent = {0: 1.0, 1: 4.0, 2: 6.0}
    >>> updates = [ClientUpdate(Client(i, i, 5), {"prompts": torch.full((1, 1), sent[i])}, 5) for i in sent]
    >>> server = pool.aggregate(server, updates)
    >>> {name: value.flatten().tolist() for name, value in pool.broadcast(server, Client(0, 0, 5)).items()}
    {'prompt': [3.6666667461395264], 'nonlocal_prompts': [4.0]}
    """

    count: int
    selection: Selection
    slots: Slots
    mean: FedAvg = field(default_factory=FedAvg)
    deploys: tuple[str, ...] = ("prompt",)

    def broadcast(self, server: ServerState, client: Client) -> State:
        """Returns the mean prompt and those of the client's experts."""
        prompts = server.shared["prompts"]
        chosen = self.experts_of(client, server)
        lent = prompts.new_zeros(self.count, *prompts.shape[1:])
        lent[: len(chosen)] = prompts[chosen]
        return {"prompt": server.shared["prompt"], "nonlocal_prompts": lent}

    def experts_of(self, client: Client, server: ServerState) -> list[int]:
        """Returns whose prompts a client gets, the nearest first."""
        prompts: Float[Tensor, "K L D"] = server.shared["prompts"]
        filled = prompts.flatten(1).any(dim=1)
        if not filled[client.id]:
            return []
        others = [slot for slot in filled.nonzero().flatten().tolist() if slot != client.id]
        if self.selection == "random":
            generator = torch.Generator().manual_seed(derive_seed(EXPERTS, server.round, client.id))
            order = torch.randperm(len(others), generator=generator)
        else:
            order = (prompts[others] - prompts[client.id]).flatten(1).norm(dim=1).argsort(stable=True)
        return [others[place] for place in order[: self.count].tolist()]

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Fills the slots of those who took part and averages their prompts; only the mean is deployed."""
        server = self.slots.aggregate(server, updates)
        renamed = [replace(update, state={"prompt": update.state["prompts"]}) for update in updates]
        server = self.mean.aggregate(server, renamed)
        return replace(server, deployed=select(server.deployed, self.deploys))

    def check(self, clients: Sequence[Client]) -> None:
        """Raises UserError if slots are missing."""
        self.slots.check(clients)
