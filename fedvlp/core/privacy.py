"""Which differential privacy the phases of a round give, and which phase gives none."""

from __future__ import annotations

from collections.abc import Sequence

from fedvlp.core.aggregation.base import PrivacyGuarantee
from fedvlp.core.phases import Phase
from fedvlp.core.strategies import combines_cohort
from fedvlp.core.strategies.rules import parts_of
from fedvlp.utils.errors import UserError


def guarantees(phases: Sequence[Phase]) -> tuple[PrivacyGuarantee, ...]:
    """Returns the guarantee of each combination of uploads in a round; empty if no rule gives one.

    Args:
        phases: of a round, with their rules.

    Raises:
        UserError: if some rule gives one, but in another place uploads change the server without.
    """
    found: list[PrivacyGuarantee] = []
    for phase in phases:
        rules = [part.rule for part in parts_of(phase.strategy)]
        found += [rule.guarantee for rule in rules if rule.guarantee is not None]
    if found:
        for phase in phases:
            _check(phase)
    return tuple(found)


def _check(phase: Phase) -> None:
    """Raises UserError if anything of the uploads gets past the noise."""
    parts = parts_of(phase.strategy)
    exposed = [type(part).__name__ for part in parts if not combines_cohort(part)]
    if not combines_cohort(phase.strategy):
        name = exposed[0] if exposed else type(phase.strategy).__name__
        reason = f"its strategy {name} looks at uploads one by one, and does not average the cohort's"
    elif len(parts) > 1 and any(part.rule.client_noise for part in parts):
        reason = "clients add noise to a whole upload, and its tensors are combined in several ways"
    elif plain := [type(part.rule).__name__ for part in parts if part.rule.guarantee is None]:
        reason = f"its rule {plain[0]} adds no noise"
    else:
        return
    raise UserError(
        f"Phase {phase.name!r} can't be differentially private: {reason}. Leave DPFedAvg out, or take a method that "
        "averages all that is sent, such as PromptFL or TRIP."
    )
