"""Counts what crosses the network, from what was sent."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from fedvlp.callbacks.hooks import FederationCallback
from fedvlp.cost import COUNTS, exchange
from fedvlp.module import Phase
from fedvlp.state import ClientUpdate, ServerState


class Communication(FederationCallback):
    """Adds to each round's row the parameters and bytes that a client sent and received, over all phases.

    Attributes:
        counts: for each client of the running round, by id, the four ``COUNTS``.
    """

    def __init__(self) -> None:
        self.counts: dict[int, Counter[str]] = {}

    def on_round_start(self, federation: Any, phases: Any, cohort: Any) -> None:
        """Starts counting at zero."""
        self.counts = defaultdict(Counter)

    def on_phase_end(
        self,
        federation: Any,
        phase: Phase,
        before: ServerState,
        server: ServerState,
        updates: Sequence[ClientUpdate],
    ) -> None:
        """Counts what each client downloaded and uploaded in this phase."""
        for update in updates:
            for name, count in exchange(phase.strategy.broadcast(before, update.client), update.state).items():
                self.counts[update.client.id][name] += count

    def on_round_metrics(self, federation: Any, row: dict[str, Any]) -> None:
        """Writes the largest client's counts, which are every client's where all send the same; and the sum."""
        for name in COUNTS:
            row[name] = max((client[name] for client in self.counts.values()), default=0)
        row["total_bytes"] = sum(client["upload_bytes"] + client["download_bytes"] for client in self.counts.values())
