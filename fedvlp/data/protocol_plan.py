"""What the protocol that was chosen makes of a data set: which classes train, which parts measure, what results say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedvlp.data.files.images import Images
from fedvlp.data.own_test import own_test_parts
from fedvlp.data.protocol_parts import base_and_new_parts, local_parts
from fedvlp.data.protocols import KINDS, SPLITTING_CLASSES, ClassSplit, Protocol, check_protocol, num_base
from fedvlp.data.split_rule import OfficialSplit, SplitRule, generator_for
from fedvlp.data.split_table import hash_lines
from fedvlp.data.splits import SplitPart
from fedvlp.data.transfer import Transfer
from fedvlp.utils.errors import UserError


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
            UserError: if a client has no test images of its own, or nobody has classes of his own.
        """
        base = self.num_base(num_classes)
        if base is not None:
            measured = base_and_new_parts(parts, images, base, num_classes)
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
        return kept + own_test_parts(images, test, training, generator_for(seed, "own test images"))

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
        """Returns a text for each domain of other data sets that is equal on all machines with the same images."""
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
