"""Gives each rule of a round its own memory, and replaces the rules of all phases by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from fedvlp.core.aggregation import AggregationRule, describe_rule
from fedvlp.core.phases import Phase
from fedvlp.core.state import Client
from fedvlp.core.strategies import Strategy
from fedvlp.core.strategies.rules import CombinesByRule, rebuilt
from fedvlp.utils.errors import UserError


def with_aggregation(
    phases: Sequence[Phase],
    aggregation: AggregationRule | None,
    clients: Sequence[Client],
    cohort_size: int | None = None,
) -> tuple[Phase, ...]:
    """Returns the phases in which one rule combines wherever several clients' uploads become one.

    A strategy that keeps each client's upload by itself stays as it is, as where each domain is one client. Rules'
    memories are named ``<phase>/<rule in the phase>``, both counted from 0, so none can meet another's.

    Args:
        phases: of a round.
        aggregation: the rule; None keeps those of the strategies.
        clients: all clients.
        cohort_size: clients of a round; None for all.

    Raises:
        UserError: if too few clients take part for a rule, or no phase combines uploads.
    """
    size = min(cohort_size or len(clients), len(clients))
    placed = tuple(_placed(index, phase, aggregation, clients, size) for index, phase in enumerate(phases))
    if aggregation is not None and phases and not any(_combines(phase.strategy, clients, size) for phase in placed):
        raise UserError(
            f"trainer.aggregation is {describe_rule(aggregation)}, but no phase of the method makes one state of "
            "several clients' uploads. Leave it out, or use a partition with several clients a domain."
        )
    return placed


def _placed(
    index: int, phase: Phase, aggregation: AggregationRule | None, clients: Sequence[Client], size: int
) -> Phase:
    """Returns a phase with its rules in their places, once they have been found to have enough clients."""
    numbers: Iterator[int] = count()

    def visit(strategy: Any) -> Strategy:
        groups = strategy.groups(clients, size)
        rule = aggregation if aggregation is not None and groups else strategy.rule
        for name, num_clients in groups.items():
            rule.check(num_clients, f"phase {phase.name!r}{', ' if name else ''}{name}")
        placed: Strategy = replace(strategy, rule=rule, place=f"{index}/{next(numbers)}")
        return placed

    return replace(phase, strategy=rebuilt(phase.strategy, visit))


def _combines(strategy: Strategy, clients: Sequence[Client], size: int) -> bool:
    """Whether any part of a strategy makes one state of several clients' uploads."""
    found: list[CombinesByRule] = []

    def visit(part: Any) -> Strategy:
        if part.groups(clients, size):
            found.append(part)
        unchanged: Strategy = part
        return unchanged

    rebuilt(strategy, visit)
    return bool(found)
