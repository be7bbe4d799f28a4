"""Counts what crosses the network, from what was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from fedvlp.core.phases import Phase
from fedvlp.core.state import Client, ClientUpdate, ServerState, State
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.training.communication import COUNTS, exchange


class Communication(FederationCallback):
    """Adds to each round's row the parameters and bytes that a client sent and received, over all phases.

    Attributes:
        counts: for each client of the running round, by id, the four ``COUNTS`` by name.
    """

    def __init__(self) -> None:
        self.counts: dict[int, Counter[str]] = {}

    def on_round_start(self, federation: RunView, phases: Sequence[Phase], cohort: Sequence[Client]) -> None:
        """Starts counting at zero."""
        self.counts = {}

    def on_phase_end(
        self,
        federation: RunView,
        phase: Phase,
        before: ServerState,
        server: ServerState,
        updates: Sequence[ClientUpdate],
        download: Callable[[Client], State],
    ) -> None:
        """Counts what each client downloaded and uploaded in this phase."""
        for update in updates:
            if update.client.is_pool:  # the images are where the server is
                continue
            counts = self.counts.setdefault(update.client.id, Counter())
            counts.update(exchange(download=download(update.client), upload=update.state))

    def on_round_metrics(self, federation: RunView, row: dict[str, Any]) -> None:
        """Writes the largest client's counts, which are every client's where all send the same; and the sum."""
        for name in COUNTS:
            row[name] = max((counts[name] for counts in self.counts.values()), default=0)
        row["total_bytes"] = sum(counts["upload_bytes"] + counts["download_bytes"] for counts in self.counts.values())
