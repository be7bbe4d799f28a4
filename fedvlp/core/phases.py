"""The phases of a round: what each trains and sends, and where aggregators make one state of several uploads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from fedvlp.core.aggregation.base import Aggregator, ClientNoise, PrivacyGuarantee, describe_aggregator
from fedvlp.core.state import Client, ClientUpdate, ServerState, State, matches_prefix, select
from fedvlp.core.strategies import Reducer, Strategy
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed


@dataclass(frozen=True)
class Phase:
    """One train-and-communicate stage of a round; a round is a list of phases.

    Attributes:
        name: what the paper calls the stage.
        train: names (or prefixes) of the parameters that get gradients.
        upload: names (or prefixes) of the tensors sent to the server afterwards.
        strategy: what the server sends and what it does with the uploads.
        download: names (or prefixes) of those tensors that clients need of what the strategy sends; all if not given.
        deploy: names (or prefixes) of the only tensors that evaluation needs after the phase; all if not given.
    """

    name: str
    train: tuple[str, ...]
    upload: tuple[str, ...]
    strategy: Strategy
    download: tuple[str, ...] | None = None
    deploy: tuple[str, ...] | None = None

    def broadcast(self, server: ServerState, client: Client) -> State:
        """What a client downloads before it trains."""
        sent = self.strategy.broadcast(server, client)
        return sent if self.download is None else select(sent, self.download)

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """The server's state after the cohort's updates; no updates change nothing."""
        if not updates:
            return server
        server = self.strategy.aggregate(server, updates)
        if self.deploy is None:
            return server
        return replace(server, deployed=select(server.deployed, self.deploy))


@dataclass(frozen=True)
class RoundContext:
    """Where training stands; read-only for methods.

    Attributes:
        round: number of finished rounds, from 0.
        phase: the phase that is running.
        client: whose data are trained on.
    """

    round: int
    phase: Phase
    client: Client


@runtime_checkable
class HasPhases(Protocol):
    """What :func:`check_phases` asks of a method; every ``FederatedModule`` has it."""

    personal: tuple[str, ...]
    train_only_personal: tuple[str, ...]

    def configure_phases(self) -> Sequence[Phase]:
        """The phases of a round."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All tensors that can be sent or kept, by name."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All parameters, by name."""
        ...


def check_phases(module: HasPhases) -> Sequence[Phase]:
    """Returns the method's phases, checked before a round is run.

    Raises:
        UserError: if a phase names a tensor that does not exist, or trains one that it neither uploads nor keeps and
            that would thus leak from one simulated client to the next.
    """
    phases = tuple(module.configure_phases())
    for phase in phases:
        _check_names(module, phase)
        _check_nothing_leaks(module, phase)
    return phases


def _check_names(module: HasPhases, phase: Phase) -> None:
    known = [*module.state_dict(), *(name for name, _ in module.named_parameters())]
    named = (*phase.train, *phase.upload, *(phase.download or ()), *(phase.deploy or ()))
    for prefix in (*named, *module.personal, *module.train_only_personal):
        if not any(matches_prefix((prefix,), name) for name in known):
            method = type(module).__name__
            raise UserError(f"Phase {phase.name!r} of {method} names {prefix!r}, but no tensor is called so.")


def _check_nothing_leaks(module: HasPhases, phase: Phase) -> None:
    sent_or_kept = (*phase.upload, *module.personal, *module.train_only_personal)
    for name, _ in module.named_parameters():
        if matches_prefix(phase.train, name) and not matches_prefix(sent_or_kept, name):
            raise UserError(
                f"{type(module).__name__} trains {name!r} in phase {phase.name!r} but neither uploads nor keeps it, "
                "so it would leak from one client to the next. Add it to the phase's upload or to `personal`."
            )


AGGREGATORS = 0x52756C65
"""Marks the draws of aggregators among all that depend on a seed."""


def with_aggregation(
    phases: Sequence[Phase],
    aggregation: Aggregator | None,
    clients: Sequence[Client],
    cohort_size: int | None = None,
    seed: int = 0,
) -> tuple[Phase, ...]:
    """The phases with one aggregator wherever several clients' uploads become one state, each with its own memory.

    A strategy that keeps each client's upload by itself is unchanged, as where each domain is one client. Memories are
    named ``<phase>/<reducer in the phase>``, both counted from 0.

    Args:
        phases: of a round.
        aggregation: the aggregator; None keeps those of the strategies.
        clients: all clients.
        cohort_size: clients of a round; None for all.
        seed: of the federation, for aggregators that draw.

    Raises:
        UserError: if too few clients take part for an aggregator, no phase reduces uploads, or an aggregator gives
            differential privacy and a phase does not.
    """
    size = min(cohort_size or len(clients), len(clients))
    bound: list[Phase] = []
    for index, phase in enumerate(phases):
        numbers = count()

        def bind(
            reducer: Reducer, phase: Phase = phase, index: int = index, numbers: Iterator[int] = numbers
        ) -> Strategy:
            groups = reducer.groups(clients, size)
            aggregator = aggregation if aggregation is not None and groups else reducer.aggregator
            for name, num_clients in groups.items():
                aggregator.check(num_clients, f"phase {phase.name!r}{', ' if name else ''}{name}")
            number = next(numbers)
            drawn = derive_seed(AGGREGATORS, seed, index, number)
            return reducer.with_aggregator(aggregator.bound(sum(groups.values()) or size, drawn), f"{index}/{number}")

        bound.append(replace(phase, strategy=phase.strategy.with_reducers(bind)))
    guarantees(bound)
    reduces = [bool(reducer.groups(clients, size)) for phase in bound for reducer in phase.strategy.reducers]
    if aggregation is not None and phases and not any(reduces):
        raise UserError(
            f"trainer.server.aggregation is {describe_aggregator(aggregation)}, but no phase of the method makes one "
            "state of several clients' uploads. Leave it out, or use a partition with several clients a domain."
        )
    return tuple(bound)


def too_few_uploads(
    strategy: Strategy, clients: Sequence[Client], cohort_size: int, uploading: Sequence[Client]
) -> Mapping[str, str]:
    """What is wrong, in a line, where an aggregator needs more uploads than a round has, by whose they are.

    Args:
        strategy: of a phase.
        clients: all clients.
        cohort_size: clients of the round.
        uploading: those whose uploads count; a group from which none uploads lacks nothing.
    """
    problems: dict[str, str] = {}
    for reducer in strategy.reducers:
        needed = reducer.aggregator.min_clients
        if needed == 1:
            continue
        for group in reducer.groups(clients, cohort_size):
            uploads = len(clients_of_group(group, uploading))
            if 0 < uploads < needed:
                name = type(reducer.aggregator).__name__
                problems[group] = f"{name} needs uploads of {needed} clients and has {uploads}"
    return problems


def clients_of_group(group: str, clients: Sequence[Client]) -> list[Client]:
    """Those of some clients whose uploads are reduced in a group that ``groups`` names."""
    return [client for client in clients if group in ("", f"domain {client.domain}")]


def most_needed_uploads(strategy: Strategy, clients: Sequence[Client], cohort_size: int) -> int:
    """How many uploads of a round's cohort a strategy's aggregators need, at least 1.

    Args:
        strategy: of a phase.
        clients: all clients.
        cohort_size: clients of the round.
    """
    needed = 1
    for reducer in strategy.reducers:
        if "" in reducer.groups(clients, cohort_size):
            needed = max(needed, reducer.aggregator.min_clients)
    return needed


def client_noise(strategy: Strategy) -> ClientNoise | None:
    """What each client does to its upload before it sends it, as its aggregator asks; None for nothing."""
    return next((reducer.aggregator.client_noise for reducer in strategy.reducers), None)


def is_linear(strategy: Strategy) -> bool:
    """Whether all that a strategy needs of the uploads is their weighted sum, which a secure sum would give."""
    return strategy.reduces_cohort and all(reducer.aggregator.is_linear for reducer in strategy.reducers)


def guarantees(phases: Sequence[Phase]) -> tuple[PrivacyGuarantee, ...]:
    """The differential privacy of each reduction of uploads in a round; empty if no aggregator gives any.

    Args:
        phases: of a round, with their aggregators.

    Raises:
        UserError: if some aggregator gives any, but in another place uploads change the server without noise.
    """
    given: list[PrivacyGuarantee] = []
    for phase in phases:
        for reducer in phase.strategy.reducers:
            if reducer.aggregator.guarantee is not None:
                given.append(reducer.aggregator.guarantee)
    if given:
        for phase in phases:
            _check_privacy(phase)
    return tuple(given)


def _check_privacy(phase: Phase) -> None:
    """Raises UserError if anything of the uploads gets past the noise."""
    reducers = phase.strategy.reducers
    exposed = [type(reducer).__name__ for reducer in reducers if not reducer.reduces_cohort]
    if not phase.strategy.reduces_cohort:
        name = exposed[0] if exposed else type(phase.strategy).__name__
        reason = f"its strategy {name} looks at uploads one by one, and does not average the cohort's"
    elif len(reducers) > 1 and any(reducer.aggregator.client_noise for reducer in reducers):
        reason = "clients add noise to a whole upload, and its tensors are combined in several ways"
    elif plain := [type(each.aggregator).__name__ for each in reducers if each.aggregator.guarantee is None]:
        reason = f"its aggregator {plain[0]} adds no noise"
    else:
        return
    raise UserError(
        f"Phase {phase.name!r} can't be differentially private: {reason}. Leave DPFedAvg out, or take a method that "
        "averages all that is sent, such as PromptFL or TRIP."
    )
