"""Gives each rule of a round its own memory, and replaces the rules of all phases by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from fedvlp.core.aggregation import AggregationRule, describe_rule
from fedvlp.core.phases import Phase
from fedvlp.core.privacy import guarantees
from fedvlp.core.state import Client
from fedvlp.core.strategies import Strategy
from fedvlp.core.strategies.rules import of_group, parts_of, rebuilt
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed

RULES = 0x52756C65
"""Marks the draws of rules among all that depend on a seed."""


def with_aggregation(
    phases: Sequence[Phase],
    aggregation: AggregationRule | None,
    clients: Sequence[Client],
    cohort_size: int | None = None,
    seed: int = 0,
) -> tuple[Phase, ...]:
    """Returns the phases in which one rule combines wherever several clients' uploads become one.

    A strategy that keeps each client's upload by itself stays as it is, as where each domain is one client. Rules'
    memories are named ``<phase>/<rule in the phase>``, both counted from 0, so none can meet another's.

    Args:
        phases: of a round.
        aggregation: the rule; None keeps those of the strategies.
        clients: all clients.
        cohort_size: clients of a round; None for all.
        seed: of the federation, for rules that draw.

    Raises:
        UserError: if too few clients take part for a rule, no phase combines uploads, or a rule gives differential
            privacy and a phase does not.
    """
    size = min(cohort_size or len(clients), len(clients))
    placed = tuple(
        _placed(phase, aggregation, clients, size, place=(seed, index)) for index, phase in enumerate(phases)
    )
    guarantees(placed)
    if aggregation is not None and phases and not any(_combines(phase.strategy, clients, size) for phase in placed):
        raise UserError(
            f"trainer.server.aggregation is {describe_rule(aggregation)}, but no phase of the method makes one state "
            "of several clients' uploads. Leave it out, or use a partition with several clients a domain."
        )
    return placed


def _placed(
    phase: Phase, aggregation: AggregationRule | None, clients: Sequence[Client], size: int, place: tuple[int, int]
) -> Phase:
    """Returns a phase with its rules in their places, once they have been found to have enough clients.

    The place is the federation's seed and the phase's number in the round.
    """
    seed, index = place
    numbers: Iterator[int] = count()

    def visit(strategy: Any) -> Strategy:
        groups = strategy.groups(clients, size)
        rule = aggregation if aggregation is not None and groups else strategy.rule
        for name, num_clients in groups.items():
            rule.check(num_clients, f"phase {phase.name!r}{', ' if name else ''}{name}")
        number = next(numbers)
        rule = rule.placed(sum(groups.values()) or size, derive_seed(RULES, seed, index, number))
        placed: Strategy = replace(strategy, rule=rule, place=f"{index}/{number}")
        return placed

    return replace(phase, strategy=rebuilt(phase.strategy, visit))


def _combines(strategy: Strategy, clients: Sequence[Client], size: int) -> bool:
    """Whether any part of a strategy makes one state of several clients' uploads."""
    return any(part.groups(clients, size) for part in parts_of(strategy))


def too_few_uploads(
    strategy: Strategy, clients: Sequence[Client], cohort_size: int, uploading: Sequence[Client]
) -> Mapping[str, str]:
    """Returns what is wrong, in a line, where a rule needs more uploads than a round has, by whose they are.

    Args:
        strategy: of a phase.
        clients: all clients.
        cohort_size: clients of the round.
        uploading: those whose uploads count; a group from which nobody uploads lacks nothing.
    """
    found: dict[str, str] = {}
    for part in parts_of(strategy):
        needed = part.rule.min_clients
        if needed == 1:
            continue
        for group in part.groups(clients, cohort_size):
            count = len(of_group(group, uploading))
            if 0 < count < needed:
                found[group] = f"{type(part.rule).__name__} needs uploads of {needed} clients and has {count}"
    return found


def most_needed_uploads(strategy: Strategy, clients: Sequence[Client], cohort_size: int) -> int:
    """Returns how many uploads of a round's cohort a strategy's rules need, at least 1.

    Args:
        strategy: of a phase.
        clients: all clients.
        cohort_size: clients of the round.
    """
    needed = 1
    for part in parts_of(strategy):
        if "" in part.groups(clients, cohort_size):
            needed = max(needed, part.rule.min_clients)
    return needed
