"""Counts what crosses the network, from what was sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedvlp.core.module import Phase
from fedvlp.core.state import ClientUpdate, ServerState, State, num_bytes, numel
from fedvlp.training.callback import FederationCallback
from fedvlp.training.communication import COUNTS


class Communication(FederationCallback):
    """Adds to each round's row the parameters and bytes that a client sent and received, over all phases.

    Attributes:
        counts: for each client of the running round, by id, the four ``COUNTS``.
    """

    def __init__(self) -> None:
        self.counts: dict[int, tuple[int, ...]] = {}

    def on_round_start(self, federation: Any, phases: Any, cohort: Any) -> None:
        """Starts counting at zero."""
        self.counts = {}

    def on_phase_end(
        self,
        federation: Any,
        phase: Phase,
        before: ServerState,
        server: ServerState,
        updates: Sequence[ClientUpdate],
    ) -> None:
        """Counts what each client downloaded and uploaded in this phase; what all download is counted once."""
        downloads: dict[int, tuple[State, tuple[int, int]]] = {}
        for update in updates:
            download = phase.strategy.broadcast(before, update.client)
            if id(download) not in downloads:
                downloads[id(download)] = download, _size(download)
            counts = (*_size(update.state), *downloads[id(download)][1])
            known = self.counts.get(update.client.id)
            self.counts[update.client.id] = tuple(map(sum, zip(known, counts, strict=True))) if known else counts

    def on_round_metrics(self, federation: Any, row: dict[str, Any]) -> None:
        """Writes the largest client's counts, which are every client's where all send the same; and the sum."""
        for place, name in enumerate(COUNTS):
            row[name] = max((counts[place] for counts in self.counts.values()), default=0)
        bytes_of = [place for place, name in enumerate(COUNTS) if name.endswith("bytes")]
        row["total_bytes"] = sum(counts[place] for counts in self.counts.values() for place in bytes_of)


def _size(state: State) -> tuple[int, int]:
    """Returns the parameters and the bytes of a state."""
    return numel(state), num_bytes(state)
