"""What every rule of local training is: a client's part, a server's part, and what goes to and fro between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import Inputs
from fedvlp.core.state import Client, ClientUpdate, State
from fedvlp.core.strategies import Strategy
from fedvlp.training.local_rules.terms import LocalTerm


@dataclass(frozen=True)
class Visit:
    """One client's training in one phase, as a rule sees it; the client's tensors are in the module.

    Attributes:
        module: the method.
        names: the trained tensors that are averaged over clients; a rule corrects no others.
        start: all trained tensors as training begins, copies.
        received: what the rule's server part sent, by name.
        kept: what the rule kept on this client after its last training in this phase; empty before its first.
        steps: optimizer steps of this training, at least 1.
        proximal_weight: mu of FedProx's term in this client's loss, at least 0.
        accuracy: of the client as training begins, on its validation images, in [0, 1]; None unless the rule asks.
    """

    module: FederatedModule
    names: tuple[str, ...]
    start: State
    received: State
    kept: State
    steps: int
    proximal_weight: float = 0.0
    accuracy: float | None = None

    @property
    def averaged(self) -> State:
        """What the averaged tensors were as training began: w_t."""
        return {name: self.start[name] for name in self.names}


@dataclass(frozen=True)
class ClientEnd:
    """What a client's training led to.

    Attributes:
        trained: all trained tensors, themselves and no copies.
        gradients: of the averaged tensors, means over the steps of what the optimizer stepped by; empty unless the
            rule asks.
        accuracy: of the client after its training, on its validation images, in [0, 1]; None unless the rule asks.
    """

    trained: Mapping[str, Tensor]
    gradients: State = field(default_factory=dict)
    accuracy: float | None = None


@dataclass(frozen=True)
class ServerRound:
    """What the server has before it combines the uploads of a phase.

    Attributes:
        updates: of the cohort, without what the rule's client part sent; at least one.
        sent: what that sent, one an update.
        shared: the tensors that the clients went on from.
        memory: what the rule remembered in the last round of this phase; empty before the first.
        names: the tensors that are averaged.
        clients: all clients.
        weights: how much each of them counts in averages, by its id: its images, or 1 where each counts once.
        round: number of finished rounds.
        rounds: number of all rounds.
    """

    updates: Sequence[ClientUpdate]
    sent: Sequence[State]
    shared: State
    memory: State
    names: tuple[str, ...]
    clients: Sequence[Client]
    weights: Mapping[int, float]
    round: int
    rounds: int


class LocalRule(ABC):
    """A rule of local training; a subclass is a frozen dataclass and overrides what it needs.

    Its methods are pure: what it has to remember goes through what it returns. What is kept on a client and what the
    server remembers are in every checkpoint.

    Attributes:
        needs_gradients: whether it asks for the means of a client's gradients.
        needs_accuracy: whether it asks for a client's accuracy on its own validation images.
        needs_rounds: whether it depends on the number of all rounds.
        adds_batch_loss: whether it adds something to the loss that depends on the batch.
        sets_weights: whether it decides how much each client counts in an average.
    """

    needs_gradients = False
    needs_accuracy = False
    needs_rounds = False
    adds_batch_loss = False
    sets_weights = False

    def download(self, memory: State, shared: State) -> State:
        """Returns what each client downloads for the rule.

        Args:
            memory: what the rule remembers of this phase.
            shared: the tensors that are averaged, by name.
        """
        return {}

    def term(self, visit: Visit) -> LocalTerm | None:
        """Returns what is added to the loss of each step; None for nothing, and then for every client."""
        return None

    def batch_loss(self, visit: Visit, inputs: Inputs) -> Tensor | None:
        """Returns what is added to the loss of a batch, a mean over its images; None for nothing."""
        return None

    @abstractmethod
    def finish(self, visit: Visit, end: ClientEnd) -> tuple[State, State]:
        """Returns what the client sends for the rule, and what it keeps.

        What is sent has the same names and shapes for all clients.
        """
        ...

    def upload_like(self, averaged: State) -> State:
        """Returns tensors of the names, shapes and types of what a client sends for the rule.

        Args:
            averaged: the tensors that are averaged, by name.
        """
        return {}

    def before_combining(self, round: ServerRound) -> tuple[Sequence[ClientUpdate], State]:
        """Returns the updates as they are to be combined, and what the rule remembers."""
        return round.updates, {}

    def with_server_part(self, part: Any, weights: Mapping[int, float]) -> Strategy:
        """Returns a strategy that averages the cohort's uploads, changed as the rule needs it.

        Args:
            part: the strategy, a frozen dataclass with a ``rule``.
            weights: how much each client counts, by its id.
        """
        unchanged: Strategy = part
        return unchanged


def describe_local_rule(rule: LocalRule | None, rounds: int | None = None) -> dict[str, Any] | None:
    """Returns a rule's class and options, as they are written into results.

    Args:
        rule: the rule; None for none.
        rounds: number of all rounds, which is named with a rule that depends on it; None to leave it out.
    """
    if rule is None:
        return None
    options: dict[str, Any] = asdict(rule)  # type: ignore[call-overload]
    depends_on = {"rounds": rounds} if rounds is not None and rule.needs_rounds else {}
    return {"class": type(rule).__name__, **options, **depends_on}
