"""Tensors that the server computes from others, and downloads of a part of what is shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from fedvlp.core.state import Client, ClientUpdate, ServerState, State, detached, select
from fedvlp.core.strategies.base import Strategy
from fedvlp.core.strategies.rules import combines_cohort


@dataclass(frozen=True)
class ServerComputed:
    """Computes shared tensors from the other shared ones after each aggregation: shared <- shared | make(shared).

    Args:
        inner: The strategy that combines the uploads.
        make: From all shared tensors to those computed; pure, and run without gradients.
        deploys: The only tensors (or prefixes) that evaluation needs; all if not given.

    >>> from fedvlp.core.state import Client
    >>> from fedvlp.core.strategies.slots import Slots
    >>> server = ServerState.start({"prompts": torch.zeros(2, 1), "mean": torch.zeros(1)})
    >>> mean = lambda shared: {"mean": shared["prompts"].mean(0)}
    >>> strategy = ServerComputed(Slots("client"), mean, deploys=("mean",))
    >>> server = strategy.aggregate(server, [ClientUpdate(Client(1, 0, 4), {"prompts": torch.tensor([6.0])}, 4)])
    >>> server.shared["mean"].item(), list(server.deployed)
    (3.0, ['mean'])
    """

    inner: Strategy
    make: Callable[[State], State]
    deploys: tuple[str, ...] | None = None

    @property
    def combines_cohort(self) -> bool:
        """Whether the inner strategy does; what is computed looks at no upload."""
        return combines_cohort(self.inner)

    def broadcast(self, server: ServerState, client: Client) -> State:
        """Returns what the inner strategy would."""
        return self.inner.broadcast(server, client)

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Combines the uploads and computes what follows from them; an empty cohort changes nothing."""
        if not updates:
            return server
        server = self.inner.aggregate(server, updates)
        with torch.no_grad():
            server = server.updated(detached(self.make(server.shared)))
        return server if self.deploys is None else replace(server, deployed=select(server.deployed, self.deploys))

    def check(self, clients: Sequence[Client]) -> None:
        """Raises what the inner strategy raises."""
        self.inner.check(clients)


@dataclass(frozen=True)
class DownloadOnly:
    """Restricts the download to the tensors that a phase needs.

    Args:
        names: The tensors (or prefixes) that clients download.
        inner: The strategy that combines the uploads.

    >>> from fedvlp.core.state import Client
    >>> from fedvlp.core.strategies.averaging import FedAvg
    >>> server = ServerState.start({"prompt": torch.zeros(1), "router": torch.zeros(9)})
    >>> DownloadOnly(("prompt",), FedAvg()).broadcast(server, Client(0, 0, 1))
    {'prompt': tensor([0.])}
    """

    names: tuple[str, ...]
    inner: Strategy

    @property
    def combines_cohort(self) -> bool:
        """Whether the inner strategy does."""
        return combines_cohort(self.inner)

    def broadcast(self, server: ServerState, client: Client) -> State:
        """Returns these of the tensors that the inner strategy would send."""
        return select(self.inner.broadcast(server, client), self.names)

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Returns what the inner strategy would."""
        return self.inner.aggregate(server, updates)

    def check(self, clients: Sequence[Client]) -> None:
        """Raises what the inner strategy raises."""
        self.inner.check(clients)
