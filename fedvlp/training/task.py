"""One phase of one round: the task of each client, the result of each, and the server's state after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fedvlp.core.module import FederatedModule
from fedvlp.core.phases import Phase, client_noise, guarantees
from fedvlp.core.protocols import EvaluationSplit, MeasuredData
from fedvlp.core.state import (
    ADD_ON,
    Client,
    ClientUpdate,
    RunState,
    ServerState,
    State,
    add_prefix,
    matches_prefix,
    strip_prefix,
)
from fedvlp.core.strategies import FedAvg, averaged_tensors
from fedvlp.runs.client_store import StoredState
from fedvlp.training.add_ons.base import AddOn, NoisyUpload, ServerRound
from fedvlp.utils.errors import UserError

Task = TypeVar("Task", bound="PhaseTask")


@dataclass(frozen=True)
class PhaseTask:
    """A phase of one round, as every client of the cohort is asked to train it.

    Add-ons exchange tensors next to the method's, under ``add_on/<index>/``.

    Attributes:
        index: place of the phase in the round, from 0.
        names: the trained tensors that are averaged over clients.
        add_ons: those at work in the phase, in their order.
        state: the federation's state before the phase.
        seeds: of each client's random draws, by the client's id.
        rounds: number of all rounds.
        all_clients: all clients; sites that join late report only then how many images they have.
        learning_rate_factor: on the learning rates of every optimizer of the round.
        shares_of_steps: by the client's id, the share of its steps that a straggler takes, in (0, 1].
    """

    phase: Phase
    index: int
    names: tuple[str, ...]
    add_ons: tuple[AddOn, ...]
    state: RunState
    seeds: Mapping[int, int]
    rounds: int
    all_clients: Callable[[], Sequence[Client]]
    learning_rate_factor: float = 1.0
    shares_of_steps: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of_phase(
        cls: type[Task],
        module: FederatedModule,
        phases: Sequence[Phase],
        index: int,
        add_ons: Sequence[AddOn],
        **of_round: Any,
    ) -> Task:
        """Make the task of a phase; ``of_round`` are the attributes from ``state`` on."""
        phase = phases[index]
        names = averaged_names(module, phase)
        at_work = [add_on for add_on in add_ons if names or not add_on.needs_average]
        # The last, so that what other add-ons make of the upload is hidden as well.
        noise = client_noise(phase.strategy)
        if noise is not None:
            at_work.append(NoisyUpload(noise))
        return cls(phase, index, names, tuple(at_work), **of_round)

    @property
    def round(self) -> int:
        """The number of finished rounds."""
        return self.state.server.round

    def download(self, client: Client) -> State:
        """What a client downloads, for the method and for add-ons."""
        server = self.state.server
        download = self.phase.broadcast(server, client)
        # Most runs have none, and with many clients a second dict for each is felt.
        if self.add_ons:
            averaged = {name: server.shared[name] for name in self.names}
            for place, add_on in enumerate(self.add_ons):
                extra = add_on.download(self._memory(place), averaged)
                download = download | add_prefix(extra, f"{ADD_ON}/{place}")
        return download

    def kept(self, client: Client) -> State:
        """What a client's optimizers and add-ons continue from, of all phases."""
        return self.state.optimizer_states.get(client.id, {})

    def sent_like(self, shared: State) -> State:
        """Tensors such as each client uploads for add-ons."""
        averaged = {name: shared[name] for name in self.names}
        sent: State = {}
        for place, add_on in enumerate(self.add_ons):
            sent |= add_prefix(add_on.sent_like(averaged), f"{ADD_ON}/{place}")
        return sent

    def aggregate(self, updates: Sequence[ClientUpdate]) -> ServerState:
        """Let add-ons see the cohort's updates in their order, combine them, and return the server's state after it."""
        server = self.state.server
        if not self.add_ons or not updates:
            return self.phase.aggregate(server, updates)
        weights = self._weights()
        # Add-ons see what they sent; the strategy and add-ons after them see the method's tensors alone.
        sent = [update.state for update in updates]
        updates = [replace(update, state=of_method(update.state)) for update in updates]
        rounds: list[ServerRound] = []
        memory: State = {}
        for place, add_on in enumerate(self.add_ons):
            server_round = ServerRound(
                updates=updates,
                sent=[strip_prefix(state, f"{ADD_ON}/{place}") for state in sent],
                shared=server.shared,
                memory=self._memory(place),
                names=self.names,
                clients=self.all_clients(),
                weights=weights,
                round=server.round,
                rounds=self.rounds,
            )
            # Each sees the updates as the one before it left them.
            updates, remembered = add_on.before_aggregation(server_round)
            memory |= add_prefix(remembered, f"{ADD_ON}/{self.index}/{place}")
            rounds.append(server_round)
        after = self.phase.aggregate(server, updates)
        for place, (add_on, server_round) in enumerate(zip(self.add_ons, rounds, strict=True)):
            combined = {name: after.shared[name] for name in self.names}
            changed, remembered = add_on.after_aggregation(server_round, combined)
            memory |= add_prefix(remembered, f"{ADD_ON}/{self.index}/{place}")
            # A deployed average over rounds stays as the strategy made it.
            deployed = {name: value for name, value in changed.items() if after.deployed.get(name) is combined[name]}
            after = replace(after, shared=after.shared | changed, deployed=after.deployed | deployed)
        return replace(after, memory=after.memory | memory)

    def _memory(self, place: int) -> State:
        return strip_prefix(self.state.server.memory, f"{ADD_ON}/{self.index}/{place}")

    def _weights(self) -> dict[int, float]:
        """How much each client counts where the strategy averages: its images, or 1."""
        averages = [reducer for reducer in self.phase.strategy.reducers if isinstance(reducer, FedAvg)]
        # Without an average there is nothing to weigh, and 1 is as good as any.
        counts_once = all(average.weighting == "uniform" for average in averages)
        return {client.id: 1.0 if counts_once else float(client.num_examples) for client in self.all_clients()}


@dataclass(frozen=True)
class ClientResult:
    """The result of one client's local training.

    Attributes:
        optimizer_state: state of its optimizers and add-ons; empty where they start from scratch in each round.
        is_finite: whether no value of its personal tensors is NaN or infinite.
        failure: why the client has no usable result; empty if it trained to the end.
        retried: why its first try failed; empty if there was only one.
    """

    update: ClientUpdate
    personal: StoredState
    optimizer_state: StoredState
    is_finite: bool = True
    failure: str = ""
    retried: str = ""

    @property
    def client(self) -> Client:
        """Who trained."""
        return self.update.client

    @classmethod
    def of_failure(cls, client: Client, reason: str) -> ClientResult:
        """What a client leaves that failed: nothing but the reason."""
        return cls(ClientUpdate(client, {}, client.num_examples), {}, {}, failure=reason)


def check_add_ons(
    module: FederatedModule, add_ons: Sequence[AddOn], phases: Sequence[Phase], data: MeasuredData, precision: str
) -> None:
    """Raise UserError if an add-on does not work with method, aggregation, data or precision."""
    averages = not phases or any(averaged_names(module, phase) for phase in phases)
    for add_on in add_ons:
        if add_on.needs_average and not averages:
            raise UserError(
                f"trainer.local.add_ons has {type(add_on).__name__}, but no phase of {type(module).__name__} averages "
                "what clients train. Leave it out, or take a method that does."
            )
        name = type(add_on).__name__
        if add_on.needs_gradients and precision == "16-mixed":
            raise UserError(f"{name} needs gradients unchanged, but 16-mixed scales them. Use bf16-mixed or 32-true.")
        if add_on.needs_average and guarantees(phases):
            raise UserError(
                f"DPFedAvg hides what clients send, but not what {name} makes of it. Leave it out of "
                "trainer.local.add_ons, or take another trainer.server.aggregation."
            )
        for phase in phases if add_on.sets_weights else ():
            for reducer in phase.strategy.reducers:
                if reducer.reduces_cohort and not reducer.aggregator.is_linear:
                    raise UserError(
                        f"{name} decides how much each client counts, which {type(reducer.aggregator).__name__} does "
                        "not look at. Leave one of them out, or take an aggregation of the weighted mean."
                    )
        measured = {client.id for split in validation_splits([add_on], data) for client in split.clients}
        lacking = [client for client in data.clients if add_on.needs_accuracy and client.id not in measured]
        if lacking:
            raise UserError(
                f"{name} measures each client on validation images of its domains, but "
                f"{lacking[0].name or lacking[0].id!r} has none. Set data.validation_fraction above 0."
            )


def validation_splits(add_ons: Sequence[AddOn], data: MeasuredData) -> list[EvaluationSplit]:
    """The splits on which add-ons measure clients; none where no add-on does."""
    if not any(add_on.needs_accuracy for add_on in add_ons):
        return []
    return [split for split in data.evaluation_splits() if split.role == "validation"]


def averaged_names(module: FederatedModule, phase: Phase) -> tuple[str, ...]:
    """The parameters that a phase trains and averages over clients, in the module's order."""
    names: list[str] = []
    for name, _ in module.named_parameters():
        is_sent = matches_prefix(phase.train, name) and matches_prefix(phase.upload, name)
        if is_sent and not matches_prefix((*module.personal, *module.train_only_personal), name):
            names.append(name)
    return tuple(averaged_tensors(phase.strategy, names))


def of_method(state: State) -> State:
    """Leave out of a state what add-ons exchange."""
    return {name: value for name, value in state.items() if not name.startswith(f"{ADD_ON}/")}
