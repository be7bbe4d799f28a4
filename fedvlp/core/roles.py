"""Tables of roles, protocols and baselines: the source of all titles, marks, orders and permissions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MeasuredRole = Literal[
    "validation", "local", "test", "test_new", "held_out", "held_out_new", "transfer", "personal", "global"
]
ImageRole = Literal["train"] | MeasuredRole
ProtocolName = Literal[
    "leave_domains_out", "all_seen", "base_to_new", "cross_dataset", "new_classes_and_domains", "personal"
]
BaselineName = Literal["zero_shot", "class_means"]
SelectionMetric = Literal["accuracy", "balanced_accuracy", "macro_f1"]


@dataclass(frozen=True)
class Role:
    """A group of evaluation images, or a score computed from accuracies of other roles."""

    title: str  # name of the role in tables and messages
    mark: str = ""  # symbol after the titles of its columns
    note: str = ""  # explanation of its columns, printed below a table
    selects: bool = False  # whether it may select a round or options; all other roles are reported
    by_client: bool = False  # whether its splits are named after clients instead of domains
    is_computed: bool = False  # whether it is computed from other roles and has no images
    harmonic_of: tuple[MeasuredRole, ...] = ()  # it is the harmonic mean of these roles' means, if they were evaluated

    @property
    def images(self) -> str:
        """Name of its images, to put before "images"."""
        return f"source {self.title}" if self.selects else self.title

    @property
    def mean(self) -> str:
        """Column title of its mean over domains or clients."""
        if self.selects:
            return "mean"
        return self.title if self.is_computed else f"{self.title} mean"


ROLES: dict[str, Role] = {
    "validation": Role("validation", selects=True),
    "local": Role("own classes", by_client=True),
    "test": Role("test", mark="+", note="+ test split: no client trains on it, and it never chooses a round"),
    "test_new": Role("new classes", mark="+n"),
    "test_harmonic": Role(
        "harmonic mean",
        note="Base, New: test splits among the training classes, and among new classes; H: their harmonic mean",
        is_computed=True,
        harmonic_of=("local", "test", "test_new"),
    ),
    "held_out": Role("held-out", mark="*", note="* held out: no client has it, and it never chooses a round"),
    "held_out_new": Role(
        "held-out, new classes", mark="*n", note="*n held-out domain, among new classes: never chooses a round"
    ),
    "held_out_harmonic": Role("held-out, harmonic mean", is_computed=True, harmonic_of=("held_out", "held_out_new")),
    "transfer": Role(
        "other data sets",
        mark="&",
        note="& another data set, with its own classes: no client trains on it, and it never chooses a round",
    ),
    "personal": Role(
        "own model",
        note="own model: each client's model on its own test images; global model: on the same images",
        by_client=True,
    ),
    "personal_worst": Role("worst own model", is_computed=True),
    "personal_spread": Role("spread of own models", is_computed=True),
    "global": Role("global model", by_client=True),
    "global_worst": Role("worst of the global model", is_computed=True),
    "global_spread": Role("spread of the global model", is_computed=True),
}
"""All roles by name in metrics, in the order of table columns."""

REPORTED = tuple(name for name, role in ROLES.items() if not role.selects)
"""Roles of reported results: no client trains on their images, and they select nothing."""

SERVED: tuple[MeasuredRole, ...] = ("test", "held_out")
"""Roles of test images of the training classes, which ``test_dataloader`` serves."""

OUT_OF_DISTRIBUTION = "out_of_distribution"
"""Prefix of splits whose images belong to none of the classes, so they have no accuracy."""


@dataclass(frozen=True)
class Protocol:
    """The domains and classes of training and evaluation, and the score that ranks methods."""

    title: str  # name of the protocol in results
    role: str  # role that ranks methods
    images: str  # evaluated images, to follow "accuracy in % on"
    score: str  # score that ranks methods, to follow "%"
    # Roles by column title, if a table's columns are not the splits of ``role``.
    columns: Mapping[str, str] = field(default_factory=dict)
    mean: str = ""  # title of the column that ranks methods, if it is not the average over columns
    holds_domains_out: bool = False  # whether it needs held-out domains; the other protocols accept none
    splits_classes: bool = False  # whether half of the classes train, and the other half is also evaluated
    measures_test_images: bool = False  # whether it needs test images of the source domains

    @property
    def scored_role(self) -> str:
        """The role of a table's scores by class. For a harmonic mean it is the role of the base classes."""
        return "test" if ROLES[self.role].is_computed else self.role


PROTOCOLS: dict[ProtocolName, Protocol] = {
    "leave_domains_out": Protocol(
        "leave-domains-out",
        "held_out",
        "held-out domains",
        "mean accuracy on held-out domains",
        holds_domains_out=True,
    ),
    "all_seen": Protocol(
        "all domains seen",
        "test",
        "each domain's test split",
        "mean accuracy on the domains' test splits",
    ),
    "base_to_new": Protocol(
        "base-to-new",
        "test_harmonic",
        "test splits: among the training classes, and among new classes",
        "harmonic mean of the accuracies on base and on new classes",
        columns={"own classes": "local", "Base": "test", "New": "test_new"},
        mean="H",
        splits_classes=True,
        measures_test_images=True,
    ),
    "cross_dataset": Protocol(
        "cross-dataset",
        "transfer",
        "other data sets, each with its own classes",
        "mean accuracy on the other data sets",
    ),
    "new_classes_and_domains": Protocol(
        "new-classes-and-domains",
        "held_out_new",
        "held-out domains, among classes that no client trained on",
        "mean accuracy on new classes of held-out domains",
        holds_domains_out=True,
        splits_classes=True,
    ),
    "personal": Protocol(
        "personal",
        "personal",
        "each client's test images: its own model, and the global model on the same images",
        "mean accuracy of the clients' own models on their own test images",
        columns={
            "worst client": "personal_worst",
            "spread of clients": "personal_spread",
            "global model": "global",
            "its worst client": "global_worst",
        },
        mean="mean of clients",
        measures_test_images=True,
    ),
}
"""All protocols by option name."""

BASELINES: dict[str, str] = {"zero_shot": "zero-shot CLIP", "class_means": "class means"}
"""Untrained classifiers that tables show next to a method: titles of their rows by option name."""

SELECTION_METRICS = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "macro_f1": "macro F1"}
"""Metrics on source validation that may select a round or a trial: titles by option name."""

TEST_TIME = ", test_time: the method saw the unlabelled test images"
"""Added to the protocol of methods that adapt to test images, so that their results get tables of their own."""

CENTRALISED = "centralised, not federated"
"""Replaces the description of clients in results of centralised training."""


def selection_column(metric: str) -> str:
    """Name the column of ``metrics.csv`` with the mean of a selection metric over the source domains."""
    return "validation" if metric == "accuracy" else f"validation_{metric}"
