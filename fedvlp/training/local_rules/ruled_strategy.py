"""The server's side of a phase with a rule of local training: what the rule exchanges travels with the uploads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedvlp.core.module import FederatedModule
from fedvlp.core.phases import Phase
from fedvlp.core.state import RULE, Client, ClientUpdate, ServerState, State, matches_prefix
from fedvlp.core.strategies import Strategy, averaged, combines_cohort
from fedvlp.core.strategies.rules import parts_of, rebuilt
from fedvlp.training.local_rules.base import LocalRule, ServerRound
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import add_prefix, strip_prefix


@dataclass(frozen=True)
class RuledStrategy:
    """A phase's strategy, beside which a rule's server part sends, receives and remembers.

    Args:
        inner: the strategy, with the rule's server part in it.
        rule: the rule.
        names: the trained tensors that are averaged.
        clients: returns all clients; of sites that come late it is only known later how many images they have.
        rounds: number of all rounds.
        memory_name: under which the rule's memory is in the server's.
    """

    inner: Strategy
    rule: LocalRule
    names: tuple[str, ...]
    clients: Callable[[], Sequence[Client]]
    rounds: int
    memory_name: str

    @property
    def combines_cohort(self) -> bool:
        """False: the rule looks at what each client sends for it."""
        return False

    def broadcast(self, server: ServerState, client: Client) -> State:
        """Returns what the inner strategy would, and what the rule sends."""
        own = self.inner.broadcast(server, client)
        shared = {name: server.shared[name] for name in self.names}
        sent = self.rule.download(strip_prefix(server.memory, self.memory_name), shared)
        return own | add_prefix(sent, RULE) if sent else own

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Lets the rule see what it was sent, and the inner strategy combine the rest; no updates change nothing."""
        if not updates:
            return self.inner.aggregate(server, updates)
        clients = self.clients()
        weights = _weights(self.inner, clients)
        round = ServerRound(
            updates=[replace(update, state=without_rule(update.state)) for update in updates],
            sent=[strip_prefix(update.state, RULE) for update in updates],
            shared=server.shared,
            memory=strip_prefix(server.memory, self.memory_name),
            names=self.names,
            clients=clients,
            weights=weights,
            round=server.round,
            rounds=self.rounds,
        )
        changed, remembered = self.rule.before_combining(round)
        after = self._with_server_part(weights).aggregate(server, changed)
        return replace(after, memory=after.memory | add_prefix(remembered, self.memory_name))

    def check(self, clients: Sequence[Client]) -> None:
        """Raises what the inner strategy raises."""
        self.inner.check(clients)

    def _with_server_part(self, weights: Mapping[int, float]) -> Strategy:
        """Returns the inner strategy, changed by the rule wherever it averages the cohort's uploads."""

        def visit(part: Any) -> Strategy:
            unchanged: Strategy = part
            return self.rule.with_server_part(part, weights) if combines_cohort(part) else unchanged

        return rebuilt(self.inner, visit)


def without_rule(state: State) -> State:
    """Returns a state without what a rule sends.

    >>> import torch
    >>> list(without_rule({"prompt": torch.zeros(2), "local_rule/prompt": torch.zeros(2)}))
    ['prompt']
    """
    return {name: value for name, value in state.items() if not name.startswith(f"{RULE}/")}


def sent_for_rule(phase: Phase, shared: State) -> State:
    """Returns tensors such as each client uploads for the rule of a phase; none where there is none.

    Args:
        phase: of a round.
        shared: the tensors that clients download.
    """
    strategy = phase.strategy
    if not isinstance(strategy, RuledStrategy):
        return {}
    return add_prefix(strategy.rule.upload_like({name: shared[name] for name in strategy.names}), RULE)


def ruled_names(module: FederatedModule, phase: Phase) -> tuple[str, ...]:
    """Returns the parameters that a phase trains and that are averaged over clients, in the module's order."""
    kept = (*module.personal, *module.train_only_personal)
    found: list[str] = []
    for name, _ in module.named_parameters():
        is_sent = matches_prefix(phase.train, name) and matches_prefix(phase.upload, name)
        if is_sent and not matches_prefix(kept, name):
            found.append(name)
    return tuple(averaged(phase.strategy, found))


def with_local_rule(
    phases: Sequence[Phase],
    rule: LocalRule | None,
    module: FederatedModule,
    clients: Callable[[], Sequence[Client]],
    rounds: int,
) -> tuple[Phase, ...]:
    """Returns the phases in which a rule is at work, wherever one averages trained tensors over the cohort.

    Args:
        phases: of a round, with their rules of aggregation.
        rule: the rule; None for none.
        module: the method.
        clients: returns all clients.
        rounds: number of all rounds.

    Raises:
        UserError: if no phase averages anything.
    """
    if rule is None:
        return tuple(phases)
    ruled: list[Phase] = []
    for index, phase in enumerate(phases):
        names = ruled_names(module, phase)
        strategy = RuledStrategy(phase.strategy, rule, names, clients, rounds, f"{RULE}/{index}")
        ruled.append(replace(phase, strategy=strategy) if names else phase)
    if phases and not any(isinstance(phase.strategy, RuledStrategy) for phase in ruled):
        raise UserError(
            f"trainer.local.rule is {type(rule).__name__}, but no phase of {type(module).__name__} averages what "
            "clients train. Leave it out, or take a method that does."
        )
    return tuple(ruled)


def _weights(strategy: Strategy, clients: Sequence[Client]) -> dict[int, float]:
    """Returns how much each client counts where a strategy averages: its images, or 1."""
    averages = [part for part in parts_of(strategy) if combines_cohort(part)]
    counts_once = all(getattr(part, "weighting", "examples") == "uniform" for part in averages)
    return {client.id: 1.0 if counts_once else float(client.num_examples) for client in clients}
