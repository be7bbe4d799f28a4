"""The protocols of the field: what is trained on, what is measured, and what results say of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedvlp.core.roles import MeasuredRole
from fedvlp.data.bound_loaders import Transfer
from fedvlp.data.files.images import Images, Indices
from fedvlp.data.partition import Partitioner
from fedvlp.data.split_rule import OfficialSplit, SplitRule, generator_for
from fedvlp.data.splits import SplitPart, client_test_parts, hash_lines
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


OF_NEW: dict[str, MeasuredRole] = {"test": "test_new", "held_out": "held_out_new"}
"""The role of new classes' images beside that of base classes."""


def base_and_new_parts(
    parts: Sequence[SplitPart], images: Mapping[str, Images], num_base: int, num_classes: int
) -> list[SplitPart]:
    """Divides test and held-out images into those of base and those of new classes, each told from its own kind alone.

    Args:
        parts: the parts of a split, in their order; training and validation images are of base classes already.
        images: images by domain.
        num_base: how many classes, the first ones, train.
        num_classes: how many there are.

    Returns:
        The parts, those of new classes behind the others of their role; without those that are empty.
    """
    found = [part for part in parts if part.role not in OF_NEW]
    # New classes follow the base classes of a role, the order in which results list them.
    for role, role_of_new in OF_NEW.items():
        of_role = [part for part in parts if part.role == role]
        found += [_of_classes(part, images, range(num_base)) for part in of_role]
        new = range(num_base, num_classes)
        found += [replace(_of_classes(part, images, new), role=role_of_new, classes=tuple(new)) for part in of_role]
    return [part for part in found if len(part)]


def local_parts(parts: Sequence[SplitPart], images: Mapping[str, Images], num_base: int) -> list[SplitPart]:
    """Returns for each client the test images, of its domains, of the classes that it trains on, told from each other.

    Args:
        parts: the parts of a split, test parts among them.
        images: images by domain.
        num_base: how many classes, the first ones, train.
    """
    found = []
    for part in parts:
        if part.role != "train":
            continue
        # A client is measured on what it can know: its domains, and the classes that it trains on.
        classes = classes_of(part, images)
        rows: dict[str, Indices] = {}
        for test in parts:
            if test.role == "test" and test.domains[0] in part.rows_by_domain:
                rows |= _of_classes(test, images, classes).rows_by_domain
        own = SplitPart("local", {domain: of_domain for domain, of_domain in rows.items() if len(of_domain)})
        others = () if len(classes) == num_base else tuple(classes)
        found.append(replace(own, clients=part.clients, classes=others))
    return [part for part in found if len(part)]


def classes_of(part: SplitPart, images: Mapping[str, Images]) -> list[int]:
    """Returns the labels of a part's images, ascending."""
    found: set[int] = set()
    for domain, rows in part.rows_by_domain.items():
        found.update(images[domain].labels[rows].tolist())
    return sorted(found)


def _of_classes(part: SplitPart, images: Mapping[str, Images], classes: Sequence[int]) -> SplitPart:
    """Leaves out the images of other classes."""
    kept = {}
    for domain, rows in part.rows_by_domain.items():
        kept[domain] = rows[np.isin(images[domain].labels[rows], np.asarray(classes))]
    return replace(part, rows_by_domain=kept)


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


@dataclass(frozen=True)
class ProtocolPlan:
    """A protocol with its options.

    Attributes:
        name: the protocol.
        held_out: names of the held-out domains.
        class_split: whether clients are also measured on the classes of their own.
        transfers: the other data sets that are measured.
    """

    name: Protocol
    held_out: tuple[str, ...] = ()
    class_split: ClassSplit = "data_set"
    transfers: tuple[Transfer, ...] = ()

    @property
    def targets(self) -> list[str]:
        """The names of the other data sets."""
        return [transfer.data.name for transfer in self.transfers]

    def check(self, rule: SplitRule, official: OfficialSplit | None) -> None:
        """Checks that there is what the protocol measures, and nothing else.

        Raises:
            UserError: if not.
        """
        check_protocol(self.name, self.held_out, rule, official, self.targets)
        if self.class_split == "client" and self.name != "base_to_new":
            raise UserError(f"data.class_split is an option of base_to_new alone; the protocol is {self.name}.")

    def num_base(self, num_classes: int) -> int | None:
        """Returns how many classes, the first ones, train; None where all do."""
        return num_base(num_classes) if self.name in SPLITTING_CLASSES else None

    def parts(
        self, parts: Sequence[SplitPart], images: Mapping[str, Images], num_classes: int, seed: int
    ) -> list[SplitPart]:
        """Returns the parts of a split as the protocol measures them.

        Args:
            parts: those of ``make_splits``.
            images: images by domain.
            num_classes: how many classes there are.
            seed: of what is drawn.

        Raises:
            UserError: if a client has no test images of its own, or no client has classes of its own.
        """
        base = self.num_base(num_classes)
        if base is not None:
            measured = base_and_new_parts(parts, images, base, num_classes)
            # Clients' own parts come last, so the order of the others does not depend on `class_split`.
            return measured + (self._local_parts(measured, images, base) if self.class_split == "client" else [])
        return self._personal_parts(parts, images, seed) if self.name == "personal" else list(parts)

    def _local_parts(self, parts: Sequence[SplitPart], images: Mapping[str, Images], base: int) -> list[SplitPart]:
        found = local_parts(parts, images, base)
        if not any(part.classes for part in found):
            raise UserError(
                f"data.class_split=client measures clients on classes of their own, and each has all {base}. "
                "Deal classes out, for instance with data.partition=FewClasses."
            )
        return found

    def _personal_parts(self, parts: Sequence[SplitPart], images: Mapping[str, Images], seed: int) -> list[SplitPart]:
        training = [part for part in parts if part.role == "train"]
        if training[0].clients[0].is_pool:
            raise UserError("The protocol personal measures clients, and centralised training has none. Use all_seen.")
        test = {part.domains[0]: part.rows_by_domain[part.domains[0]] for part in parts if part.role == "test"}
        kept = [part for part in parts if part.role != "test"]
        return kept + client_test_parts(images, test, training, generator_for(seed, "own test images"))

    def text(self, class_names: Sequence[str]) -> str:
        """Returns what the protocol's line begins with; nothing for those whose line says it anyhow.

        Args:
            class_names: all classes.
        """
        base = self.num_base(len(class_names))
        if base is not None:
            own = " and each client on its own" if self.class_split == "client" else ""
            return f"{KINDS[self.name]}, {base} base and {len(class_names) - base} new classes{own}"
        if self.name == "personal":
            return "each client on test images of its own"
        return f"measured on {', '.join(self.targets)}" if self.targets else ""

    def split_hash(self, own: str) -> str:
        """Returns a split's digest, changed by the images of other data sets that are measured."""
        return hash_lines([own, *(each.split_hash for each in self.transfers)]) if self.transfers else own

    def image_identities(self) -> dict[str, str]:
        """Returns a string for each domain of other data sets that is equal on all machines with the same images."""
        found = {}
        for transfer in self.transfers:
            of_data_set = transfer.data.image_identities()
            found.update({f"{transfer.data.name}/{domain}": text for domain, text in of_data_set.items()})
        return found

    def describe(self, class_names: Sequence[str]) -> dict[str, Any]:
        """Returns what results must have in common besides the split, made to be written as JSON.

        Args:
            class_names: all classes.
        """
        base = self.num_base(len(class_names))
        if base is None:
            targets = {"targets": [transfer.describe() for transfer in self.transfers]} if self.transfers else {}
            return {"kind": KINDS[self.name], **targets}
        own = {"class_split": self.class_split} if self.class_split != "data_set" else {}
        return {"kind": KINDS[self.name], "new_classes": list(class_names[base:]), **own}
