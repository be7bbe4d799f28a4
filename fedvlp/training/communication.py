"""Communication cost of a method, counted from its phases without training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from fedvlp.core.module import FederatedModule, check_phases
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client, ClientUpdate, RunState, ServerState, State, detached, num_bytes, numel, select
from fedvlp.core.strategies import FedAvg
from fedvlp.training.add_ons.base import AddOn
from fedvlp.training.task import PhaseTask, method_tensors

COUNTS = ("upload_parameters", "upload_bytes", "download_parameters", "download_bytes")
Counts = dict[str, int]


@dataclass(frozen=True)
class Cost:
    """Communication cost of a method: ``COUNTS`` of each client in one round, by phase.

    ``once`` holds the parameters and bytes that the server sends to each client once, before the first round.
    """

    phases: Mapping[str, Sequence[Counts]]
    once: tuple[int, int]

    def rows(self, rounds: int, cohort_size: int | None = None) -> list[dict[str, Any]]:
        """List maximum counts over clients, and totals over clients and rounds, for each phase and for all phases.

        The row ``all`` includes ``once``. With a ``cohort_size`` totals are expected values over random cohorts.
        """
        rows = [_row(phase, counts, (0, 0), rounds, cohort_size) for phase, counts in self.phases.items()]
        all_phases = [_add_counts(counts) for counts in zip(*self.phases.values(), strict=True)]
        return [*rows, _row("all", all_phases, self.once, rounds, cohort_size)]


def communication_cost(module: FederatedModule, clients: Sequence[Client], add_ons: Sequence[AddOn] = ()) -> Cost:
    """Count the parameters and bytes that clients and server would send in one round, without training."""
    shared = module.shared_state()
    personal = module.personal_state()
    server = ServerState.start(shared)
    phases: dict[str, list[Counts]] = {}
    method_phases = check_phases(module)
    for index, phase in enumerate(method_phases):
        phase.strategy.check(clients)
        round_settings = {"state": RunState(server), "seeds": {}, "rounds": 1, "all_clients": lambda: clients}
        task = PhaseTask.from_phase(module, method_phases, index, add_ons, **round_settings)
        # Each phase is aggregated before the next one is counted, which may send its results.
        updates: list[ClientUpdate] = []
        counts: list[Counts] = []
        is_mean = type(phase.strategy) is FedAvg
        for client in clients:
            download = task.download(client)
            module.load_state(method_tensors(download))
            module.start_client(RoundContext(0, phase, client))
            upload = {**module.upload_state(), **task.upload_template(server.shared)}
            # Pooled images are in the same place as the model, so nothing is sent.
            counts.append(exchange({}, {}) if client.is_pool else exchange(download, upload))
            # All uploads are equal, so their mean needs only one of them, which saves memory.
            if not (updates and is_mean):
                updates.append(ClientUpdate(client, method_tensors(detached(upload)), client.num_examples))
        server = phase.aggregate(server, updates)
        phases[phase.name] = counts
    module.context = None
    module.load_state(shared | personal)  # methods may change them when a client starts or uploads
    once = () if any(client.is_pool for client in clients) else module.broadcast_once
    constants = select(dict(module.named_parameters()) | dict(module.named_buffers()), once)
    return Cost(phases, (numel(constants), num_bytes(constants)))


def exchange(download: State, upload: State) -> Counts:
    """Count the parameters and bytes of one client's download and upload."""
    return {
        "upload_parameters": numel(upload),
        "upload_bytes": num_bytes(upload),
        "download_parameters": numel(download),
        "download_bytes": num_bytes(download),
    }


def _add_counts(counts: Sequence[Counts]) -> Counts:
    return {name: sum(map(itemgetter(name), counts)) for name in COUNTS}


def _row(
    phase: str, counts: Sequence[Counts], once: tuple[int, int], rounds: int, cohort_size: int | None
) -> dict[str, Any]:
    num_clients = len(counts)
    cohort = num_clients if cohort_size is None else min(cohort_size, num_clients)
    all_clients = _add_counts(counts)
    largest = {name: max(map(itemgetter(name), counts), default=0) for name in COUNTS}

    def total(unit: str, sent_once: int) -> int:
        both_ways = all_clients[f"upload_{unit}"] + all_clients[f"download_{unit}"]
        return round(rounds * cohort * both_ways / max(1, num_clients)) + sent_once * num_clients

    return {
        "phase": phase,
        **largest,
        "once_parameters": once[0],
        "once_bytes": once[1],
        "total_parameters": total("parameters", once[0]),
        "total_bytes": total("bytes", once[1]),
    }
