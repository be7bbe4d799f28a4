"""What a table compares, by the protocol of its runs: one accuracy a domain, or numbers under names of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedvlp.results.record import Record


@dataclass(frozen=True)
class Measure:
    """What a table's cells are.

    Attributes:
        role: the metric that figures show: a role, whose splits are the columns, or what is computed of several.
        images: what the accuracies are of, to stand behind "accuracy in % on".
        score: what methods are ranked by, to stand behind "%".
        columns: metrics by the titles of their columns, where these are not the splits of the role.
        title: what stands above the numbers that methods are ranked by, where it is not the average over columns.
    """

    role: str
    images: str
    score: str
    columns: Mapping[str, str] = field(default_factory=dict)
    title: str = ""

    def compared(self, accuracies: Mapping[str, float]) -> dict[str, float]:
        """Returns the accuracies that are compared, by the titles of their columns; that of ``title`` among them."""
        if self.columns:
            names = {**self.columns, self.title: self.role}
            return {title: accuracies[name] for title, name in names.items() if name in accuracies}
        prefix = f"{self.role}/"
        return {name.removeprefix(prefix): value for name, value in accuracies.items() if name.startswith(prefix)}


HELD_OUT = Measure("held_out", "held-out domains", "mean accuracy on held-out domains")
TEST = Measure("test", "each domain's test split", "mean accuracy on the domains' test splits")
VALIDATION = Measure(
    "validation",
    "each domain's source validation split, as there is no test split; it also chose the best round",
    "mean accuracy on source validation, which also chose the best round",
)
PROTOCOLS = {
    "base-to-new": Measure(
        "test_harmonic",
        "test splits: classes that train, told from each other, and new classes, told from each other",
        "harmonic mean of the accuracies on base and on new classes",
        {"own classes": "local", "base classes": "test", "new classes": "test_new"},
        "harmonic mean",
    ),
    "new-classes-and-domains": Measure(
        "held_out_new",
        "held-out domains and classes on which nobody trained, told from each other",
        "mean accuracy on new classes of held-out domains",
    ),
    "cross-dataset": Measure(
        "transfer",
        "other data sets, each with its own classes",
        "mean accuracy on the other data sets",
    ),
    "personal": Measure(
        "personal",
        "each client's test images: its own model, and the global model on the same images",
        "mean accuracy of the clients' own models on their own test images",
        {
            "worst client": "personal_worst",
            "spread of clients": "personal_spread",
            "global model": "global",
            "its worst client": "global_worst",
        },
        "mean of clients",
    ),
}
"""The measure of each protocol that has one of its own, by what results call it."""


def measure_of(record: Record) -> Measure:
    """Returns what a run is compared by: what its protocol measures; else held-out domains, test splits, validation."""
    kind = record.data.get("kind")
    if kind in PROTOCOLS:
        return PROTOCOLS[kind]
    if record.held_out:
        return HELD_OUT
    return TEST if any(map(_has_test_accuracy, record.accuracy.values())) else VALIDATION


def measure_of_role(role: str) -> Measure | None:
    """Returns the measure whose metric this is; None of one whose columns are its splits."""
    return next((each for each in PROTOCOLS.values() if each.role == role and each.columns), None)


def _has_test_accuracy(accuracies: Mapping[str, float]) -> bool:
    return any(name.startswith("test/") for name in accuracies)
