"""The one line that every result carries: what was trained on, by whom, and what it is measured on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedvlp.data.partition import Partitioner
from fedvlp.data.split_rule import OfficialSplit, SplitRule


def describe_protocol(
    held_out: Sequence[str],
    rule: SplitRule,
    partition: Partitioner,
    official: OfficialSplit | None = None,
    first: str = "",
) -> str:
    """Returns the protocol of a data set; results of different protocols do not belong in one table.

    Args:
        held_out: names of the held-out domains.
        rule: divides each source domain.
        partition: divides the training images among clients.
        official: roles that came with the images.
        first: what is said before all else, of protocols that measure something else than domains.

    >>> from fedvlp.data.partition import ByDomain, Dispersed
    >>> describe_protocol(["sketch"], SplitRule(), ByDomain())
    'held-out domain: sketch; one client a domain'
    >>> describe_protocol([], SplitRule(test_fraction=0.2, shots=16), Dispersed(30, alpha=0.5))
    'all domains seen, test split 20 %; 30 clients, Dirichlet 0.5 within domains; 16-shot'
    >>> describe_protocol(["sketch"], SplitRule(), ByDomain(), OfficialSplit("train/crossval", {}))
    'held-out domain: sketch; one client a domain; official train/crossval split'
    """
    # Results stand in one table only if these lines are equal: all that a number depends on is in it.
    seen = _seen_domains(rule, official)
    parts = [first] if first else []
    if not held_out:
        parts.append(f"all domains seen, {seen or 'no test split'}")
    else:
        plural = "s" if len(held_out) > 1 else ""
        only = ", official test split only" if official and official.has("held_out") else ""
        parts.append(f"held-out domain{plural}: {', '.join(held_out)}{only}")
        if seen:
            parts.append(f"seen domains, {seen}")
    parts.append(partition.description)
    if official:
        parts.append(f"official {official.title} split")
    if rule.shots is not None:
        parts.append(f"{rule.shots}-shot")
    return "; ".join(parts)


def _seen_domains(rule: SplitRule, official: OfficialSplit | None) -> str:
    """Returns what tests on the domains that clients have; an empty text if nothing does."""
    if official and official.has("test"):
        return "official test split"
    return f"test split {100 * rule.test_fraction:g} %" if rule.test_fraction else ""


def describe_split(
    held_out: Sequence[str], rule: SplitRule, partition: Partitioner, official: OfficialSplit | None = None
) -> dict[str, Any]:
    """Returns the same, part by part, made to be written as JSON.

    >>> from fedvlp.data.partition import ByDomain
    >>> describe_split([], SplitRule(test_fraction=0.2), ByDomain())["kind"]
    'all domains seen'
    """
    # Nothing is drawn where the images came with a test split.
    test_fraction = 0.0 if official and official.has("test") else rule.test_fraction
    return {
        "kind": "leave-domains-out" if held_out else "all domains seen",
        "held_out": list(held_out),
        "partition": partition.description,
        "split_rule": f"official {official.title}" if official else "stratified",
        "shots": rule.shots,
        "validation_fraction": None if official and official.has("validation") else rule.validation_fraction,
        "test_fraction": test_fraction,
        "split_seed": rule.seed,
    }
