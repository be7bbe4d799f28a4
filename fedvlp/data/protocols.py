"""What is trained on and what is measured, under a name: the protocols of the field."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from fedvlp.data.split_rule import OfficialSplit, SplitRule
from fedvlp.utils.errors import UserError

Protocol = Literal[
    "leave_domains_out", "all_seen", "base_to_new", "cross_dataset", "new_classes_and_domains", "personal"
]
ClassSplit = Literal["data_set", "client"]
KINDS: dict[Protocol, str] = {
    "leave_domains_out": "leave-domains-out",
    "all_seen": "all domains seen",
    "base_to_new": "base-to-new",
    "cross_dataset": "cross-dataset",
    "new_classes_and_domains": "new-classes-and-domains",
    "personal": "personal",
}
"""What results call each protocol."""

HOLDING_OUT: tuple[Protocol, ...] = ("leave_domains_out", "new_classes_and_domains")
"""Protocols that need held-out domains; the others take none."""

SPLITTING_CLASSES: tuple[Protocol, ...] = ("base_to_new", "new_classes_and_domains")
"""Protocols that train on half of the classes and measure the others as well."""


def num_base(num_classes: int) -> int:
    """Returns how many classes train where classes are split: the first half, the larger one of an odd number, as CoOp.

    Raises:
        UserError: if there are not enough for two halves that tell anything.

    >>> num_base(18), num_base(7)
    (9, 4)
    """
    if num_classes < 4:
        raise UserError(
            f"Base and new classes need two classes each at least, to be told from each other; there are {num_classes}."
        )
    return math.ceil(num_classes / 2)


def chosen(given: Protocol | None, held_out: Sequence[str]) -> Protocol:
    """Returns the protocol: the one that is named, or else the one that held-out domains, or none of them, mean."""
    if given is not None:
        return given
    return "leave_domains_out" if held_out else "all_seen"


def check_protocol(
    name: Protocol,
    held_out: Sequence[str],
    rule: SplitRule,
    official: OfficialSplit | None,
    targets: Sequence[str],
) -> None:
    """Checks that a protocol has what it measures, and nothing else.

    Args:
        name: the protocol.
        held_out: names of the held-out domains.
        rule: how source domains are divided into roles.
        official: roles that came with the images.
        targets: names of the other data sets that are measured.

    Raises:
        UserError: if something is missing or too much.
    """
    if name in HOLDING_OUT and not held_out:
        raise UserError(f"The protocol {name} holds domains out. Name them with data.held_out.")
    if held_out and name not in HOLDING_OUT:
        raise UserError(f"The protocol {name} trains on every domain. Leave out data.held_out, or data.protocol.")
    has_test = bool(rule.test_fraction) or (official is not None and official.has("test"))
    if name in ("base_to_new", "personal") and not has_test:
        raise UserError(
            f"The protocol {name} measures test images of the domains that train, and there are none. "
            "Set data.test_fraction, for instance to 0.2."
        )
    if (name == "cross_dataset") != bool(targets):
        wanted = "Name the data sets that are measured with data.targets" if not targets else "Leave out data.targets"
        raise UserError(
            f"The protocol cross_dataset, and no other, measures other data sets; this is {name}. {wanted}."
        )
    twice = sorted({target for target in targets if targets.count(target) > 1})
    if twice:
        raise UserError(
            f"Expected data.targets of different names, since results are named after them; got {twice[0]!r}."
        )
