"""Counts what crosses the network, from what was sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fedvlp.callbacks.hooks import FederationCallback
from fedvlp.module import Phase
from fedvlp.state import ClientUpdate, ServerState, num_bytes, numel

COUNTS = ("upload_parameters", "upload_bytes", "download_parameters", "download_bytes")


class Communication(FederationCallback):
    """Adds to each round's row the parameters and bytes that a client sent and received, over all phases.

    Attributes:
        counts: for each client of the running round, by id, the four ``COUNTS``.
    """

    def __init__(self) -> None:
        self.counts: dict[int, list[int]] = {}

    def on_round_start(self, federation: Any, phases: Any, cohort: Any) -> None:
        """Starts counting at zero."""
        self.counts = defaultdict(lambda: [0, 0, 0, 0])

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
            download = phase.strategy.broadcast(before, update.client)
            sent = (numel(update.state), num_bytes(update.state), numel(download), num_bytes(download))
            client = self.counts[update.client.id]
            client[:] = [total + new for total, new in zip(client, sent, strict=True)]

    def on_round_metrics(self, federation: Any, row: dict[str, Any]) -> None:
        """Writes the largest client's counts, which are every client's where all send the same; and the sum."""
        for place, name in enumerate(COUNTS):
            row[name] = max((client[place] for client in self.counts.values()), default=0)
        row["total_bytes"] = sum(client[1] + client[3] for client in self.counts.values())
