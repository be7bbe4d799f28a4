"""The phases of a round: what each trains, what it uploads, and how the server combines it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from fedvlp.core.state import Client, ClientUpdate, ServerState, State, matches_prefix, select
from fedvlp.core.strategies import Strategy
from fedvlp.utils.errors import UserError


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
