"""What a method sends, counted from its phases without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedvlp.core.module import FederatedModule, RoundContext
from fedvlp.core.phase_checks import check_phases
from fedvlp.core.state import Client, ClientUpdate, ServerState, State, num_bytes, numel, select

COUNTS = ("upload_parameters", "upload_bytes", "download_parameters", "download_bytes")
Counts = dict[str, int]


@dataclass(frozen=True)
class Cost:
    """What crosses the network.

    Attributes:
        phases: from each phase to the ``COUNTS`` of each client in one round.
        once: parameters and bytes that the server sends to each client before the first round, and never again.
    """

    phases: Mapping[str, Sequence[Counts]]
    once: tuple[int, int]

    def rows(self, rounds: int, cohort_size: int | None = None) -> list[dict[str, Any]]:
        """Returns the counts of the client that sends most, and totals over clients and rounds, both ways.

        Args:
            rounds: number of communication rounds.
            cohort_size: clients of a round; None for all. Totals are then means over who is sampled.

        Returns:
            One row a phase and one for ``all`` of them together, to which alone ``once`` belongs.
        """
        clients = list(zip(*self.phases.values(), strict=True))
        every = [{name: sum(counts[name] for counts in client) for name in COUNTS} for client in clients]
        parts = [(name, counts, (0, 0)) for name, counts in self.phases.items()]
        return [_row(*part, rounds, cohort_size) for part in [*parts, ("all", every, self.once)]]


def communication_cost(module: FederatedModule, clients: Sequence[Client]) -> Cost:
    """Returns what each client and the server would send in one round, counted from the tensors themselves.

    Args:
        module: the method; nothing in it is trained.
        clients: all clients.
    """
    server, phases = ServerState.start(module.shared_state()), {}
    for phase in check_phases(module):
        phase.strategy.check(clients)
        updates, counts = [], []
        for client in clients:
            download = phase.strategy.broadcast(server, client)
            module.load_state(download)
            module.start_client(RoundContext(0, phase, client))
            updates.append(ClientUpdate(client, module.upload_state(), client.num_examples))
            counts.append(exchange(download, updates[-1].state))
        server, phases[phase.name] = phase.strategy.aggregate(server, updates), counts
    module.context = None
    constants = select(dict(module.named_parameters()) | dict(module.named_buffers()), module.broadcast_once)
    return Cost(phases, (numel(constants), num_bytes(constants)))


def exchange(download: State, upload: State) -> Counts:
    """Counts the parameters and bytes of what one client downloads and uploads.

    >>> import torch
    >>> list(exchange(download={"p": torch.zeros(3)}, upload={"p": torch.zeros(2)}).values())
    [2, 8, 3, 12]
    """
    return dict(zip(COUNTS, (numel(upload), num_bytes(upload), numel(download), num_bytes(download)), strict=True))


def _row(
    phase: str, counts: Sequence[Counts], once: tuple[int, int], rounds: int, cohort_size: int | None
) -> dict[str, Any]:
    """Returns one row of :meth:`Cost.rows`."""
    largest = {name: max((client[name] for client in counts), default=0) for name in COUNTS}
    cohort = len(counts) if cohort_size is None else min(cohort_size, len(counts))

    def total(unit: str, sent_once: int) -> int:
        all_clients = sum(client[f"upload_{unit}"] + client[f"download_{unit}"] for client in counts)
        return round(rounds * cohort * all_clients / max(1, len(counts))) + sent_once * len(counts)

    return {
        "phase": phase,
        **largest,
        "once_parameters": once[0],
        "once_bytes": once[1],
        "total_parameters": total("parameters", once[0]),
        "total_bytes": total("bytes", once[1]),
    }
