"""One phase of one round: the clients' task, their results, and the server's state after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fedvlp.core.module import FederatedModule
from fedvlp.core.phases import Phase, client_noise, privacy_guarantees
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
    """The task of every client of the cohort in one phase of one round.

    Add-ons exchange their own tensors under ``add_on/<index>/``.

    Attributes:
        index: Index of the phase in the round, from 0.
        names: Trained tensors that are averaged over clients.
        add_ons: Active add-ons of the phase, in the order of their calls.
        state: State of the federation before the phase.
        seeds: Seed of each client's random draws, by client id.
        rounds: Total number of rounds.
        all_clients: Lists all clients. Called late, because a site reports its number of images only when it joins.
        learning_rate_factor: Factor on the learning rates of every optimizer in this round.
        step_shares: Share of its steps that a straggler takes, in (0, 1], by client id.
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
    step_shares: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def from_phase(
        cls: type[Task],
        module: FederatedModule,
        phases: Sequence[Phase],
        index: int,
        add_ons: Sequence[AddOn],
        **round_settings: Any,
    ) -> Task:
        """Make the task of a phase; ``round_settings`` are the attributes from ``state`` on."""
        phase = phases[index]
        names = averaged_names(module, phase)
        active = [add_on for add_on in add_ons if names or not add_on.needs_average]
        # Last, so that the noise also covers changes that other add-ons make to the upload.
        noise = client_noise(phase.strategy)
        if noise is not None:
            active.append(NoisyUpload(noise))
        return cls(phase, index, names, tuple(active), **round_settings)

    @property
    def round(self) -> int:
        """The number of finished rounds."""
        return self.state.server.round

    def download(self, client: Client) -> State:
        """Collect the tensors that a client downloads for the method and for add-ons."""
        server = self.state.server
        download = self.phase.broadcast(server, client)
        # Most runs have no add-ons, and copying the dict for each of many clients takes time.
        if self.add_ons:
            averaged = {name: server.shared[name] for name in self.names}
            for number, add_on in enumerate(self.add_ons):
                extra = add_on.download(self._memory(number), averaged)
                download = download | add_prefix(extra, f"{ADD_ON}/{number}")
        return download

    def client_memory(self, client: Client) -> State:
        """Get the state that a client's optimizers and add-ons continue from, of all phases."""
        return self.state.optimizer_states.get(client.id, {})

    def upload_template(self, shared: State) -> State:
        """Make tensors with the names, shapes and types of a client's upload for add-ons."""
        averaged = {name: shared[name] for name in self.names}
        template: State = {}
        for number, add_on in enumerate(self.add_ons):
            template |= add_prefix(add_on.upload_template(averaged), f"{ADD_ON}/{number}")
        return template

    def aggregate(self, updates: Sequence[ClientUpdate]) -> ServerState:
        """Let add-ons process the cohort's updates in turn, combine the updates, and return the server's new state."""
        server = self.state.server
        if not self.add_ons or not updates:
            return self.phase.aggregate(server, updates)
        weights = self._weights()
        # Each add-on gets its own uploads; updates hold only the method's tensors.
        uploads = [update.state for update in updates]
        updates = [replace(update, state=method_tensors(update.state)) for update in updates]
        rounds: list[ServerRound] = []
        memory: State = {}
        for number, add_on in enumerate(self.add_ons):
            server_round = ServerRound(
                updates=updates,
                sent=[strip_prefix(upload, f"{ADD_ON}/{number}") for upload in uploads],
                shared=server.shared,
                memory=self._memory(number),
                names=self.names,
                clients=self.all_clients(),
                weights=weights,
                round=server.round,
                rounds=self.rounds,
            )
            # Each add-on gets the updates as changed by the add-ons before it.
            updates, own_memory = add_on.before_aggregation(server_round)
            memory |= add_prefix(own_memory, f"{ADD_ON}/{self.index}/{number}")
            rounds.append(server_round)
        after = self.phase.aggregate(server, updates)
        for number, (add_on, server_round) in enumerate(zip(self.add_ons, rounds, strict=True)):
            combined = {name: after.shared[name] for name in self.names}
            changed, own_memory = add_on.after_aggregation(server_round, combined)
            memory |= add_prefix(own_memory, f"{ADD_ON}/{self.index}/{number}")
            # Averages over rounds, which a strategy may deploy, are unchanged.
            deployed = {name: value for name, value in changed.items() if after.deployed.get(name) is combined[name]}
            after = replace(after, shared=after.shared | changed, deployed=after.deployed | deployed)
        return replace(after, memory=after.memory | memory)

    def _memory(self, number: int) -> State:
        return strip_prefix(self.state.server.memory, f"{ADD_ON}/{self.index}/{number}")

    def _weights(self) -> dict[int, float]:
        averages = [reducer for reducer in self.phase.strategy.reducers if isinstance(reducer, FedAvg)]
        # Also uniform if the strategy has no average, since the weights are not used then.
        is_uniform = all(average.weighting == "uniform" for average in averages)
        return {client.id: 1.0 if is_uniform else float(client.num_examples) for client in self.all_clients()}


@dataclass(frozen=True)
class ClientResult:
    """The result of one client's local training.

    Attributes:
        optimizer_state: Stored state of optimizers and add-ons; empty if they start from scratch in each round.
        is_finite: Whether personal tensors and optimizer state are free of NaN and infinity.
        failure: Why the client has no usable result; empty if it has one.
        retried: Why the first attempt failed; empty if there was only one attempt.
    """

    update: ClientUpdate
    personal: StoredState
    optimizer_state: StoredState
    is_finite: bool = True
    failure: str = ""
    retried: str = ""

    @property
    def client(self) -> Client:
        """The client that trained."""
        return self.update.client

    @classmethod
    def from_failure(cls, client: Client, reason: str) -> ClientResult:
        """Make the result of a failed client, which holds only the reason."""
        return cls(ClientUpdate(client, {}, client.num_examples), {}, {}, failure=reason)


def check_add_ons(
    module: FederatedModule, add_ons: Sequence[AddOn], phases: Sequence[Phase], data: MeasuredData, precision: str
) -> None:
    """Raise UserError if an add-on does not work with method, aggregation, data or precision."""
    averages = not phases or any(averaged_names(module, phase) for phase in phases)
    setters = [type(add_on).__name__ for add_on in add_ons if add_on.sets_weights]
    if len(setters) > 1:
        raise UserError(f"{' and '.join(setters)} set the clients' weights. Keep one in trainer.local.add_ons.")
    for add_on in add_ons:
        name = type(add_on).__name__
        if add_on.needs_average and not averages:
            raise UserError(
                f"{name} changes averaged parameters, but no phase of {type(module).__name__} averages the clients' "
                "parameters. Remove it from trainer.local.add_ons, or use a method that averages."
            )
        if add_on.needs_gradients and precision == "16-mixed":
            raise UserError(f"{name} needs gradients unchanged, but 16-mixed scales them. Use bf16-mixed or 32-true.")
        if add_on.needs_average and privacy_guarantees(phases):
            raise UserError(
                f"DPFedAvg adds noise to the clients' updates, but not to what {name} derives from them. Remove "
                f"{name} from trainer.local.add_ons, or use another trainer.server.aggregation."
            )
        for phase in phases if add_on.sets_weights else ():
            for reducer in phase.strategy.reducers:
                if reducer.reduces_cohort and not reducer.aggregator.is_linear:
                    raise UserError(
                        f"{name} sets the clients' weights, but {type(reducer.aggregator).__name__} ignores weights. "
                        "Remove one of them, or use an aggregation that takes the weighted mean."
                    )
        measured = {client.id for split in validation_splits([add_on], data) for client in split.clients}
        lacking = [client for client in data.clients if add_on.needs_accuracy and client.id not in measured]
        if lacking:
            raise UserError(
                f"{name} evaluates each client on validation images of its domains, but "
                f"{lacking[0].name or lacking[0].id!r} has none. Add images to them."
            )


def validation_splits(add_ons: Sequence[AddOn], data: MeasuredData) -> list[EvaluationSplit]:
    """List the validation splits, if an add-on evaluates clients; else nothing."""
    if not any(add_on.needs_accuracy for add_on in add_ons):
        return []
    return [split for split in data.evaluation_splits() if split.role == "validation"]


def averaged_names(module: FederatedModule, phase: Phase) -> tuple[str, ...]:
    """List the parameters that a phase trains and averages over clients, in the module's order."""
    names: list[str] = []
    for name, _ in module.named_parameters():
        is_uploaded = matches_prefix(phase.train, name) and matches_prefix(phase.upload, name)
        if is_uploaded and not matches_prefix((*module.personal, *module.train_only_personal), name):
            names.append(name)
    return tuple(averaged_tensors(phase.strategy, names))


def method_tensors(state: State) -> State:
    """Select the method's tensors, without the tensors of add-ons."""
    return {name: value for name, value in state.items() if not name.startswith(f"{ADD_ON}/")}
