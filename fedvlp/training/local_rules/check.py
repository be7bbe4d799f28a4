"""What can't be had together with a rule of local training, refused before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence

from fedvlp.core.phases import Phase
from fedvlp.core.privacy import guarantees
from fedvlp.core.protocols import MeasuredData
from fedvlp.core.strategies import combines_cohort
from fedvlp.core.strategies.rules import parts_of
from fedvlp.training.local_rules.base import LocalRule
from fedvlp.training.local_rules.client_part import splits_of, validation_for
from fedvlp.utils.errors import UserError


def check_with_options(rule: LocalRule | None, precision: str) -> None:
    """Checks a rule against how clients train.

    Args:
        rule: the rule; None for none.
        precision: Lightning's name of the arithmetic.

    Raises:
        UserError: if it can't be had with one of these.
    """
    if rule is None:
        return
    name = type(rule).__name__
    if rule.needs_gradients and precision == "16-mixed":
        raise UserError(f"{name} needs gradients as they are, but 16-mixed scales them. Use bf16-mixed or 32-true.")


def check_with_phases(rule: LocalRule | None, phases: Sequence[Phase]) -> None:
    """Checks a rule against how uploads are combined.

    Args:
        rule: the rule; None for none.
        phases: of a round, with their rules of aggregation.

    Raises:
        UserError: if uploads are hidden by noise, which what the rule sends would get past, or the rule's weights would
            not count.
    """
    if rule is None:
        return
    name = type(rule).__name__
    if guarantees(phases):
        raise UserError(
            f"DPFedAvg hides what clients send, but not what {name} makes of it. Leave trainer.local.rule out, or "
            "take another trainer.server.aggregation."
        )
    if not rule.sets_weights:
        return
    for phase in phases:
        for part in parts_of(phase.strategy):
            if combines_cohort(part) and not part.rule.is_linear:
                raise UserError(
                    f"{name} decides how much each client counts, which {type(part.rule).__name__} does not look at. "
                    "Leave one of them out, or take an aggregation of the weighted mean."
                )


def check_with_data(rule: LocalRule | None, data: MeasuredData) -> None:
    """Checks a rule against what clients can measure on.

    Args:
        rule: the rule; None for none.
        data: clients and splits.

    Raises:
        UserError: if the rule asks for an accuracy and a client has no validation images.
    """
    if rule is None or not rule.needs_accuracy:
        return
    validation = validation_for(rule, data)
    lacking = [client for client in data.clients if not splits_of(client, validation)]
    if lacking:
        raise UserError(
            f"{type(rule).__name__} measures each client on validation images of its domains, but "
            f"{lacking[0].name or lacking[0].id!r} has none. Set data.validation_fraction above 0."
        )
