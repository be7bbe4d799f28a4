"""No communication at all: the baseline that every federation must beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedvlp.core.state import Client, ClientUpdate, ServerState, State
from fedvlp.core.strategies.base import BroadcastShared


@dataclass(frozen=True)
class Local(BroadcastShared):
    """Nothing is downloaded and nothing aggregated; each client keeps what it trains."""

    @property
    def combines_cohort(self) -> bool:
        """True: no upload changes the server."""
        return True

    def broadcast(self, server: ServerState, client: Client) -> State:
        """Returns nothing."""
        return {}

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Returns the server as it is."""
        return server
