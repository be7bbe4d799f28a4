"""Federated averaging, and different strategies for different tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedvlp.core.state import Client, ClientUpdate, ServerState, select, weighted_mean
from fedvlp.core.strategies.base import BroadcastShared, Strategy


@dataclass(frozen=True)
class FedAvg(BroadcastShared):
    """Weighted mean of the uploads (McMahan et al. 2017, Algorithm 1).

    Args:
        weighting: ``examples`` weighs a client by its training images, ``uniform`` counts each client once.

    >>> import torch
    >>> from fedvlp.core.state import Client
    >>> server = ServerState.start({"prompt": torch.zeros(1)})
    >>> few = ClientUpdate(Client(0, 0, 10), {"prompt": torch.tensor([1.0])}, num_examples=10)
    >>> many = ClientUpdate(Client(1, 1, 30), {"prompt": torch.tensor([5.0])}, num_examples=30)
    >>> FedAvg().aggregate(server, [few, many]).shared
    {'prompt': tensor([4.])}
    >>> FedAvg("uniform").aggregate(server, [few, many]).shared
    {'prompt': tensor([3.])}
    """

    weighting: Literal["examples", "uniform"] = "examples"

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Replaces the uploaded tensors by their mean; an empty cohort changes nothing."""
        if not updates:
            return server
        weights = [update.num_examples if self.weighting == "examples" else 1 for update in updates]
        return server.updated(weighted_mean([update.state for update in updates], weights))


@dataclass(frozen=True)
class ByName(BroadcastShared):
    """Different strategies for different tensors of the same upload, applied one after another.

    Args:
        parts: from a name, or several, to the strategy that combines the tensors of these names.

    >>> import torch
    >>> from fedvlp.core.state import Client
    >>> from fedvlp.core.strategies.slots import Slots
    >>> server = ServerState.start({"visual": torch.zeros(1), "text": torch.zeros(2, 1)})
    >>> upload = {"visual": torch.tensor([7.0]), "text": torch.tensor([9.0])}
    >>> strategy = ByName({"visual": FedAvg(), "text": Slots(by="domain")})
    >>> strategy.aggregate(server, [ClientUpdate(Client(0, 1, 5), upload, 5)]).shared["text"].tolist()
    [[0.0], [9.0]]
    """

    parts: Mapping[str | tuple[str, ...], Strategy]

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Gives each part its own share of every upload."""
        for names, strategy in self.parts.items():
            prefixes = (names,) if isinstance(names, str) else names
            server = strategy.aggregate(
                server, [replace(update, state=select(update.state, prefixes)) for update in updates]
            )
        return server

    def check(self, clients: Sequence[Client]) -> None:
        """Raises what any part would."""
        for strategy in self.parts.values():
            strategy.check(clients)
